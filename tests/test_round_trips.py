"""Round trips: every environment, every algorithm that fits it, every verb that takes a run.

A pair trains for two updates; then each verb is given the run, and what it says is compared with what the training
itself had: the loaded policy acts as the training actor on the same observations, the evaluation is that of the end of
the run, the resumed run goes on from it, the dataset holds its actions, the exported programs act alike.

`make test` runs a sample of cheap pairs that covers the kinds of spaces, `make test-all` some more (`long`), and
`make test-slow` all. With REGIMEN_ROUND_TRIPS=FILE each verb of each pair appends a line to it, and
`python tests/test_round_trips.py FILE` prints the matrix.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import regimen
from regimen import spaces
from regimen.algorithms.bind import bind_algorithm
from regimen.algorithms.policy_map import PolicyMap
from regimen.config import layers as settings
from regimen.config.regimen import resolve
from regimen.config.schema import ALGORITHMS
from regimen.envs import registry
from regimen.envs.adapters.gymnasium import read_mask, to_gymnasium
from regimen.envs.adapters.pettingzoo import ParallelNative
from regimen.errors import ConfigError, EnvError
from regimen.files.run_dir import read_metrics
from regimen.files.storage import read_json
from regimen.policies.export import export_policy
from regimen.policies.policy import load_policy
from regimen.reports.comparison import compare
from regimen.reports.diagnose import diagnose
from regimen.reports.replay import replay
from regimen.reports.run_report import write_report
from regimen.runs.loop import evaluation_seed
from regimen.runs.session import Session

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

HERE = Path(__file__).parent
UPDATE, LIMIT, EPISODES = 16, 8, 2  # env steps of an update, of an episode; episodes of an evaluation
TINY: dict[str, Any] = {
    "rollout.steps": UPDATE,
    "rollout.num_envs": 2,
    "network.hidden": (8,),
    "total_steps": 2 * UPDATE,
    "total_episodes": None,
    "eval.every": "never",
    "eval.episodes": EPISODES,
    "checkpoint.every": "never",
    "log.every": "1",
    "track.enabled": False,
    "seed": 1,
}
REPLAY = {"algo.batch_size": 8, "algo.buffer_size": 64, "algo.learning_starts": UPDATE}
PASSES = {"algo.minibatch_size": 8, "algo.epochs": 1}
OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "ppo": PASSES,
    "appo": PASSES,
    "sac": REPLAY,
    "cql": {"algo.batch_size": 8, "algo.behaviour_steps": 32, "algo.cql_samples": 2},
    "bc": {"algo.batch_size": 8, "algo.behaviour_steps": 32},
    "empowerment": {"algo.batch_size": 8, "algo.buffer_size": 64},
}


@dataclass(frozen=True)
class Pair:
    """An environment and an algorithm; `name` tells variants apart."""

    env: str
    algo: str
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.env.rpartition(':')[2] if ':' in self.env else self.env}-{self.algo}{self.name}"


HOSTS = ("gym:CartPole-v1", "gym:Pendulum-v1", f"{HERE / 'trip_envs.py'}:team")
MEMORY = {"network.memory": "gru", "network.memory_size": 4}
VARIANTS = (
    Pair("cartpole/positions", "ppo", MEMORY, "-gru"),
    Pair("probe/team", "ppo", MEMORY, "-gru"),
    Pair("probe/team", "ppo", {"policy_map": "agent"}, "-own"),
    Pair("gym:CartPole-v1", "ppo", MEMORY, "-gru"),
)
PAIRS = (*(Pair(env, algo) for env in (*registry.ENVS, *HOSTS) for algo in ALGORITHMS), *VARIANTS)
SAMPLE = ("cartpole-ppo", "probe/action_box-sac", "probe/hybrid-ppo", "team-ppo")  # one of each kind of actions, a team
LONG = (
    "probe/masked-ppo",
    "cartpole/positions-ppo-gru",
    "CartPole-v1-ppo",
    "platform-ppo",
    "pendulum-cql",
    "probe/dict-bc",
    "probe/multi_discrete-impala",
    "probe/components-appo",
    "airspace/head_on-ppo",
    "network_defense-ppo",
    "world/corr5-empowerment",
    "probe/team-ppo-own",
)


def marked(pair: Pair) -> Any:
    marks = [] if pair.id in SAMPLE else [pytest.mark.long if pair.id in LONG else pytest.mark.slow]
    return pytest.param(pair, id=pair.id, marks=marks)


def test_the_samples_are_pairs():
    assert {*SAMPLE, *LONG} <= {pair.id for pair in PAIRS} and len({pair.id for pair in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize("pair", map(marked, PAIRS))
def test_round_trip(pair, tmp_path, monkeypatch):
    trip = Trip(pair, tmp_path)
    if (why := trip.misfit()) is not None:
        note(pair, "fits", "no", why)
        pytest.skip(f"does not fit: {why}")
    trip.watch(monkeypatch)
    failures = []
    for verb in VERBS:
        try:
            outcome = verb(trip) or "ok"
        except Exception as error:
            outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            failures.append(f"{verb.__name__}: {outcome}")
        note(pair, verb.__name__, outcome)
        if failures and verb is train:
            break
    assert not failures, "\n".join(failures)


def note(pair: Pair, verb: str, outcome: str, why: str = "") -> None:
    """A line of the matrix."""
    if path := os.environ.get("REGIMEN_ROUND_TRIPS"):
        with open(path, "a") as file:
            row = {"pair": pair.id, "env": pair.env.rpartition("/tests/")[2] or pair.env, "algo": pair.algo + pair.name}
            file.write(json.dumps(row | {"verb": verb, "outcome": outcome} | ({"why": why} if why else {})) + "\n")


class Trip:
    """A pair, its run, and what the training had at its end."""

    def __init__(self, pair: Pair, folder: Path):
        self.pair, self.folder, self.run = pair, folder, folder / "run"
        self.handle = registry.resolve(pair.env, {"max_episode_steps": LIMIT})
        self.settings = TINY | OF_ALGORITHM.get(pair.algo, {}) | pair.settings
        self.settings = {"env_args": {"max_episode_steps": LIMIT}, "preset": "balanced"} | self.settings
        self.algo: Any = None  # the training actor
        self.params: Any = None
        self.seen: list[tuple[Any, Any, Any]] = []  # observation, mask, action of the training actor, by step

    def misfit(self) -> str | None:
        """Why the algorithm does not fit the environment: what its own `bind` says, asked without training."""
        try:
            config = settings.build_config(self.pair.env, algo=self.pair.algo, overrides=self.settings)
            regimen = resolve(config, self.handle.native is not None)
            if self.pair.algo in ("cql", "bc"):  # they learn from what SAC has seen, one agent at a time
                bind_algorithm(config.replace(algorithm="sac", algo=ALGORITHMS["sac"].config()), self.handle, regimen)
            bind_algorithm(config, self.handle, regimen)
        except (ConfigError, EnvError) as error:
            return str(error)
        return None

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep the actor of the run's session, as it is when training ends."""
        final = Session.final_evaluation

        def keep(session: Session) -> None:
            if session.path == self.run:  # not the one that collects data, nor the one that goes on
                self.algo = session.engine.algo_of(0)
                self.params = jax.device_get(session.learners[0].actor_params())
            final(session)

        monkeypatch.setattr(Session, "final_evaluation", keep)

    @property
    def recurrent(self) -> bool:
        return bool(jax.tree.leaves(self.algo.initial_carry((1,))))

    def acted(self, policy: Any) -> list[Any]:
        """What a loaded policy does on the observations seen."""
        policy.reset()
        return [policy.act(obs, mask=mask) for obs, mask, _ in self.seen]

    def expect(self, policy: Any, what: str) -> None:
        for t, (mine, (_, _, theirs)) in enumerate(zip(self.acted(policy), self.seen)):
            same(mine, theirs, f"{what}, step {t}")


def same(a: Any, b: Any, what: str) -> None:
    """Equal actions, also by name: parts of a Dict that changed places are not."""
    paths = [sorted(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)) for x in (a, b)]
    assert paths[0] == paths[1], what
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), atol=1e-5, err_msg=what)


# --- verbs -----------------------------------------------------------------------------------------------------------


def train(trip: Trip) -> None:
    result = regimen.train(trip.pair.env, trip.pair.algo, out=str(trip.run), **trip.settings)
    assert result.summary["env_steps"] == 2 * UPDATE and read_json(trip.run / "status.json")["state"] == "finished"
    assert trip.algo is not None


def act(trip: Trip) -> None:
    """Four steps of the environment by the training actor; the loaded policy does the same, and remembers the same."""
    handle, algo = trip.handle, trip.algo
    native, agents = handle.native, handle.agents
    if native is None:
        env: Any = handle.make_host()
    else:
        env = ParallelNative(native) if agents else to_gymnasium(native)
    n = max(1, len(agents))
    memory = algo.initial_carry((n,))
    step = jax.jit(lambda *x: algo.act(*x[:3], None, mask=x[3], greedy=True)[:2])
    found = env.reset(seed=0)
    for _ in range(4):
        obs, mask, rows, masks = observed(trip, env, *found[:1], found[-1])
        actions, memory = step(trip.params, rows, memory, masks)
        actions = jax.device_get(algo.to_space(actions))
        one = [jax.tree.map(lambda x, i=i: x[i].item() if x.ndim == 1 else x[i], actions) for i in range(n)]
        chosen = {a: one[i] for i, a in enumerate(agents) if a in obs} if agents else one[0]
        trip.seen.append((obs, mask, chosen))
        found = env.step([chosen.get(a, one[i]) for i, a in enumerate(agents)] if hasattr(env, "alive") else chosen)
        if over(env, agents, found):
            break
    env.close()
    trip.expect(load_policy(trip.run, "final"), "the loaded policy")


def observed(trip: Trip, env: Any, obs: Any, info: Any) -> tuple[Any, Any, Any, Any]:
    """The observation and mask as a user has them, by agent where there are several, and as batches of all agents."""
    space, actions, agents = trip.handle.observation_space, trip.handle.action_space, trip.handle.agents
    if not agents:
        mask = read_mask(info)
        rows = [spaces.cast(space, obs)]
        masks = None if mask is None else spaces.mask_row(actions, mask)[None]
        return obs, mask, jax.tree.map(lambda *x: np.stack(x), *rows), masks
    if hasattr(env, "alive"):  # a Team of PettingZoo: lists in the order of the agents, a mask [A, ...] for all
        given = {a: obs[i] for i, a in enumerate(agents) if env.alive[i]}
        every = read_mask(info)
        mask = {} if every is None else {a: every[i] for i, a in enumerate(agents) if a in given}
    else:
        given = {a: obs[a] for a in env.agents}
        mask = {a: read_mask(info[a]) for a in given if "action_mask" in info[a]}
    blank = spaces.zeros(space)
    rows = [spaces.cast(space, given[a]) if a in given else blank for a in agents]
    free = np.ones(sum(spaces.logits(s) for s in spaces.leaves(actions).values()), bool)
    masks = np.stack([spaces.mask_row(actions, mask[a]) if a in mask else free for a in agents]) if mask else None
    return given, mask, jax.tree.map(lambda *x: np.stack(x), *rows), masks


def over(env: Any, agents: Any, found: Any) -> bool:
    if not agents:
        return bool(found[2] or found[3])
    return not (env.alive.any() if hasattr(env, "alive") else env.agents)


def evaluate(trip: Trip) -> None:
    """The evaluation at the end of the run, once more from its folder."""
    played = regimen.evaluate(
        trip.run, episodes=EPISODES, seed=evaluation_seed(TINY["seed"], 2**20), checkpoint="final"
    )
    expected = read_json(trip.run / "summary.json")["final_return_mean"]
    np.testing.assert_allclose(played.returns.mean(), expected, rtol=1e-5, atol=1e-6)
    assert (played.lengths <= LIMIT).all()


def resume(trip: Trip) -> None:
    """One update more, in a copy; what was logged before stays."""
    rows = read_metrics(trip.run)
    longer = regimen.resume(trip.run, total_steps=3 * UPDATE, out=trip.folder / "longer")
    assert longer.summary["updates"] == 3 and longer.summary["env_steps"] == 3 * UPDATE
    assert read_metrics(longer.run_dir)[: len(rows)] == rows and len(longer.history) == len(rows) + 1


def replay_(trip: Trip) -> None:
    (line,) = replay(trip.run, "final", gif=False)
    (table,) = (trip.run / "replays").glob("*.csv")
    assert str(table) in line and len(table.read_text().splitlines()) > 1


def report(trip: Trip) -> None:
    page = write_report(trip.run).read_text()
    assert trip.pair.algo in page and "</html>" in page


def collect(trip: Trip) -> None:
    """Greedy episodes of the last policy: the first action of each is what the policy does there."""
    data = regimen.collect(trip.run, trip.folder / "data", "final", episodes=EPISODES, greedy=True)
    assert data.episodes >= EPISODES and data.steps <= EPISODES * LIMIT * max(1, len(trip.handle.agents))


def export(trip: Trip) -> None:
    policy = load_policy(export_policy(trip.run, trip.folder / "export", "final"))
    trip.expect(policy, "the exported policy")
    assert (trip.folder / "export" / "README.md").is_file()


def stablehlo(trip: Trip) -> str | None:
    """The program on a batch of all observations: the policy without masks."""
    out = trip.folder / "stablehlo"
    if refused_as_program(trip, out, "stablehlo"):
        return "refused"
    loaded = jax.export.deserialize(bytearray((out / "policy.stablehlo").read_bytes()))
    program_acts_alike(trip, lambda *parts: loaded.call(*parts))
    return None


def onnx(trip: Trip) -> str | None:
    if any(importlib.util.find_spec(module) is None for module in ("jax2onnx", "onnxruntime")):
        return "not installed"
    out = trip.folder / "onnx"
    if refused_as_program(trip, out, "onnx"):
        return "refused"
    import onnxruntime  # type: ignore[import-not-found]

    session = onnxruntime.InferenceSession(str(out / "policy.onnx"), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    program_acts_alike(trip, lambda *parts: session.run(None, dict(zip(names, parts))))
    return None


def refused_as_program(trip: Trip, out: Path, kind: str) -> bool:
    """Policies with a memory, and several policies, are no single program; all others are."""
    if trip.recurrent or isinstance(trip.algo, PolicyMap):
        with pytest.raises(ConfigError, match="--format"):
            export_policy(trip.run, out, "final", kind)
        assert not out.exists()
        return True
    export_policy(trip.run, out, "final", kind)
    return False


def program_acts_alike(trip: Trip, program: Callable[..., Any]) -> None:
    space, several = trip.handle.observation_space, bool(trip.handle.agents)
    singles = [one for obs, _, _ in trip.seen for one in (obs.values() if several else [obs])]
    rows = [spaces.split(space, spaces.cast(space, obs)) for obs in singles]
    parts = [np.stack([np.asarray(row[name]) for row in rows]) for name in spaces.leaves(space)]
    batch = jax.tree.map(lambda *x: np.stack(x), *[spaces.cast(space, obs) for obs in singles])
    wanted, _, _ = trip.algo.act(trip.params, batch, (), None, mask=None, greedy=True)
    wanted = spaces.split(trip.handle.action_space, trip.algo.to_env(wanted))
    for theirs, (name, mine) in zip(program(*parts), wanted.items(), strict=True):
        np.testing.assert_allclose(np.asarray(theirs), np.asarray(mine), atol=1e-4, err_msg=name)


def compare_(trip: Trip) -> None:
    lines = compare([trip.run, trip.folder / "longer"], by="total_steps").lines()
    assert any(str(2 * UPDATE) in line for line in lines) and any(str(3 * UPDATE) in line for line in lines)


def diagnose_(trip: Trip) -> None:
    assert all(finding.lines() for finding in diagnose(trip.run))


VERBS: tuple[Callable[[Trip], str | None], ...] = (
    train, act, evaluate, resume, replay_, report, collect, export, stablehlo, onnx, compare_, diagnose_
)  # fmt: skip


# --- the matrix ------------------------------------------------------------------------------------------------------


def matrix(path: Path) -> list[str]:
    """A line for each pair, a column for each verb: `.` is fine, `-` not possible here, `!` a failure told below."""
    marks = {"ok": ".", "refused": "-", "not installed": "-", "no": " "}
    rows: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(row["pair"], {})[row["verb"]] = row["outcome"]
    names = [verb.__name__.rstrip("_") for verb in VERBS]
    width = max(map(len, rows), default=0)
    tried = {pair: found for pair, found in rows.items() if "fits" not in found}
    out = [f"{'':{width}}  {' '.join(names)}"]
    for pair, found in tried.items():
        cells = (marks.get(found.get(verb.__name__, "no"), "!").center(len(name)) for verb, name in zip(VERBS, names))
        out.append(f"{pair:{width}}  {' '.join(cells)}".rstrip())
    wrong = [(p, v.rstrip("_"), o) for p, found in tried.items() for v, o in found.items() if o not in marks]
    out.append(f"{len(tried)} pairs tried, {len(rows) - len(tried)} do not fit, {len(wrong)} verbs failed")
    return out + [f"! {pair} {verb}: {outcome}" for pair, verb, outcome in wrong]


def test_matrix(tmp_path):
    rows = [
        ("a-ppo", "train", "ok"),
        ("a-ppo", "onnx", "not installed"),
        ("a-ppo", "replay_", "Error: x"),
        ("b-bc", "fits", "no"),
    ]
    path = tmp_path / "trips.jsonl"
    path.write_text("".join(json.dumps({"pair": p, "verb": v, "outcome": o}) + "\n" for p, v, o in rows))
    head, line, count, wrong = matrix(path)
    assert line[head.index("train") : head.index("act")].strip() == "." and line[head.index("onnx") + 1] == "-"
    assert count == "1 pairs tried, 1 do not fit, 1 verbs failed" and wrong == "! a-ppo replay: Error: x"


if __name__ == "__main__":
    print("\n".join(matrix(Path(sys.argv[1]))))
