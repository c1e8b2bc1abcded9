"""A policy as a program that needs no Regimen: StableHLO through `jax.export`, or ONNX through jax2onnx.

Both take batches of observations [B, ...], any B, and give the greedy actions in the environment's own units. Masks and
the memory of recurrent policies are not part of them.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from regimen import spaces
from regimen.algorithms import policy_map
from regimen.errors import ConfigError
from regimen.files.storage import write_atomic, write_json
from regimen.policies.policy import Policy
from regimen.schedule import limited_cost
from regimen.types import Array, PyTree

PLATFORMS = ("cpu", "cuda")
PARITY = 1e-4  # largest difference of a continuous action that an export may have


def write_program(policy: Policy, folder: Path, kind: str) -> Path:
    """Write `policy.stablehlo` or `policy.onnx` and `signature.json`; refused where it does not act like the policy."""
    if isinstance(policy.algo, policy_map.PolicyMap):
        raise ConfigError("--format: agents have policies of their own; only a policy folder holds several")
    if jax.tree.leaves(policy.algo.initial_carry((1,))):
        raise ConfigError("--format: a recurrent policy (network.memory) is written as a policy folder only")
    parts = samples(policy, 1)
    signature: dict[str, object] = {"format": kind, "inputs": described(input_names(policy), parts)}
    signature["outputs"] = described(output_names(policy), jax.eval_shape(greedy(policy), *parts))
    path = folder / f"policy.{kind}"
    if kind == "stablehlo":
        write_atomic(path, stablehlo(policy))
        signature["platforms"] = list(PLATFORMS)
    else:
        onnx(policy, path)
    write_json(folder / "signature.json", signature)
    return path


def input_names(policy: Policy) -> list[str]:
    """Names of the parts of an observation; a plain one is `observation`."""
    return [name or "observation" for name in spaces.leaves(policy.observation_space)]


def output_names(policy: Policy) -> list[str]:
    return [name or "action" for name in spaces.leaves(policy.action_space)]


def described(names: Sequence[str], parts: Sequence[np.ndarray]) -> dict[str, object]:
    """Type and shape of arrays [B, ...] by name."""
    return {name: {"dtype": str(x.dtype), "shape": ["B", *x.shape[1:]]} for name, x in zip(names, parts)}


def greedy(policy: Policy) -> Callable[..., tuple[Array, ...]]:
    """Actions [B, ...], one array for each part of the action, from one array for each part of the observation."""
    algo, params, observed = policy.algo, policy.params, policy.observation_space
    names = list(spaces.leaves(observed))

    @limited_cost()
    def act(*parts: Array) -> tuple[Array, ...]:
        obs = spaces.build(observed, dict(zip(names, parts)))
        action, _, _ = algo.act(params, obs, (), None, mask=None, greedy=True)
        return tuple(spaces.split(policy.action_space, algo.to_env(action)).values())

    return act


def samples(policy: Policy, n: int, seed: int = 0) -> list[np.ndarray]:
    """Observations of the space, for parity and shapes."""
    space = policy.observation_space
    space.seed(seed)
    rows = [spaces.split(space, spaces.cast(space, space.sample())) for _ in range(n)]
    return [np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]]


def require(modules: Sequence[str], kind: str, extra: str, instead: str = "") -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"--format {kind}: {module} is not installed; `pip install 'regimen[{extra}]'`{instead}")


def stablehlo(policy: Policy) -> bytes:
    require(("flatbuffers",), "stablehlo", "export")
    from jax import export

    (size,) = export.symbolic_shape("B")
    shapes = [jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in samples(policy, 1)]
    data = bytes(export.export(jax.jit(greedy(policy)), platforms=PLATFORMS)(*shapes).serialize())
    loaded = export.deserialize(bytearray(data))
    compare(policy, lambda *parts: loaded.call(*parts))
    return data


def onnx(policy: Policy, path: Path) -> None:
    require(("jax2onnx", "onnxruntime"), "onnx", "onnx", ", or use --format stablehlo")
    onnxruntime, jax2onnx = (importlib.import_module(name) for name in ("onnxruntime", "jax2onnx"))
    parts = samples(policy, 1)
    shapes = [jax.ShapeDtypeStruct(("B", *x.shape[1:]), x.dtype) for x in parts]  # type: ignore[arg-type]
    jax2onnx.to_onnx(
        greedy(policy),
        shapes,
        model_name="policy",
        input_names=input_names(policy),
        output_names=output_names(policy),
        return_mode="file",
        output_path=str(path),
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    compare(policy, lambda *parts: session.run(None, dict(zip(names, parts))))


def compare(policy: Policy, act: Callable[..., PyTree]) -> None:
    """Refuse an export whose actions are not the policy's, on observations of the space, also one at a time."""
    for n in (1, 64):
        parts = samples(policy, n, seed=n)
        for a, b in zip(jax.tree.leaves(jax.jit(greedy(policy))(*parts)), jax.tree.leaves(act(*parts))):
            a, b = np.asarray(a), np.asarray(b)
            if a.shape != b.shape:
                same = False
            elif jnp.issubdtype(a.dtype, jnp.floating):
                same = np.allclose(a, b, atol=PARITY, rtol=PARITY)
            else:
                same = float((a == b).mean()) >= 0.98  # a tie of two options may fall either way
            if not same:
                raise ConfigError("--format: the exported program does not act like the policy; nothing is exported")
