"""Who flies: the policy of a run, or a baseline; and the environment it flies in."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from regimen import spaces
from regimen.algorithms.policy_map import PolicyMap
from regimen.config.domains import effective
from regimen.domains.airspace.analysis.flight import Pilot
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import ScenarioFile, load
from regimen.envs import registry
from regimen.envs.protocol import Env, agents_of
from regimen.errors import ConfigError, StorageError, nearest
from regimen.files.run_dir import read_config, runs_below
from regimen.policies.policy import Policy, load_policy
from regimen.sources.keys import side_by_side
from regimen.sources.play import Actor, baseline_actor, greedy
from regimen.types import ActingAlgorithm, Array, PyTree

Target = str | Path | Policy  # a run directory, a folder of them, a policy, or a baseline by name
EnvArgs = Mapping[str, object] | None  # settings of the environment besides those of a run
BASELINES = ("no_op", "waypoint", "mvp")
SEVERAL = ("mixed", "random", "all")  # values of `scenario` that are not one scenario
ANY = "mixed"  # the `scenario` of who flies any: it is part of the program, which runs on different ones thus share


@dataclass(frozen=True)
class Subject:
    """What is analysed: a pilot, the environment with the settings it was trained with, and where it comes from."""

    name: str
    pilot: Pilot
    env: Airspace
    scenario: str | None = None  # it was trained on, a name or a path; None for a baseline, or of several
    path: Path | None = None  # its run directory
    algorithm: str | None = None
    agents: tuple[str, ...] = ()  # where aircraft have policies of their own: whose they are, in order

    @property
    def trained_on(self) -> str:
        """The name of the scenario that the policy was trained on; empty when it is not one."""
        return "" if self.scenario is None else load(self.scenario).name


def act_learned(env: Env, params: PyTree, keys: Array, state: PyTree, obs: PyTree, mask: Array | None, memory: PyTree):
    """Act with the greedy policy; `params` is (algorithm, its parameters)."""
    algo, weights = params
    return greedy(algo, weights, obs, mask, memory)


def act_sampled(env: Env, params: PyTree, keys: Array, state: PyTree, obs: PyTree, mask: Array | None, memory: PyTree):
    """The policy as it explores; each episode draws from its own key."""
    algo, weights = params
    noise = jax.vmap(lambda key: algo.noise(key, (len(agents_of(env)),)))(keys)
    action, memory, _ = algo.act(weights, obs, memory, side_by_side(env, noise), mask=mask)
    return algo.to_env(action), memory


def start_learned(params: PyTree, rows: int) -> PyTree:
    """The memory of a policy before its first step."""
    return params[0].initial_carry((rows,))


GREEDY, SAMPLED = Actor(act_learned, start_learned), Actor(act_sampled, start_learned)


_ALGORITHMS: dict[str, ActingAlgorithm] = {}


def policy_pilot(policy: Policy, stochastic: bool = False) -> Pilot:
    """The pilot that follows a learned policy. Policies of equal settings share one algorithm object, hence one
    compiled program."""
    algo, spec = policy.algo, policy.algo.bound.spec
    if not own_policies(policy):
        settings = [type(algo).__name__, repr(algo.config), dataclasses.asdict(algo.network)]
        settings += [spaces.to_json(spec.observation_space), spaces.to_json(spec.action_space)]
        algo = _ALGORITHMS.setdefault(json.dumps(settings, default=str), algo)
    return Pilot(SAMPLED if stochastic else GREEDY, (algo, policy.params))


def own_policies(policy: Policy) -> bool:
    """Whether aircraft have policies of their own instead of a shared one."""
    return isinstance(policy.algo, PolicyMap)


def aircraft_for(subjects: Sequence[Subject], files: Sequence[ScenarioFile]) -> int:
    """The number of aircraft that all scenarios are padded to; policies of single aircraft fix it."""
    count = max(len(f.ids) for f in files)
    sizes = {len(s.agents) for s in subjects if s.agents}
    for s in (s for s in subjects if s.agents and count > len(s.agents)):
        file = next(f for f in files if len(f.ids) > len(s.agents))
        raise ConfigError(
            f"{s.name} has policies for {len(s.agents)} aircraft ({', '.join(s.agents)}); {file.name} has "
            f"{len(file.ids)}; choose scenarios with at most {len(s.agents)} (--scenario)"
        )
    if len(sizes) > 1:
        raise ConfigError(
            "runs with policies for different numbers of aircraft cannot share a table; analyse them apart"
        )
    return max({count} | sizes)


def make_airspace(name: str, args: Mapping[str, object]) -> Airspace:
    """The environment of a run."""
    env = registry.resolve(name, args).native
    assert isinstance(env, Airspace)
    if env.vertical:
        raise ConfigError(
            "analyse: env.vertical is true, and the analysis of safety knows one level only; `regimen evaluate` counts "
            "losses of separation with altitude"
        )
    return env


def baseline_subject(name: str, env: Airspace) -> Subject:
    """A baseline, in the environment whose settings are given."""
    if name not in env.baselines:
        raise ConfigError(f"'{name}' is neither a run directory nor a baseline{nearest(name, env.baselines)}")
    return Subject(name, Pilot(baseline_actor(env.baselines[name])), env.replace(scenario=ANY))


def subject_of(target: Target, checkpoint: str = "best", stochastic: bool = False, env_args: EnvArgs = None) -> Subject:
    """A run directory, a policy folder, a `Policy`, or the name of a baseline."""
    path = None
    if isinstance(target, Policy):
        policy, origin = target, target.meta
    else:
        path = Path(target)
        if not path.is_dir():
            env = make_airspace("airspace/head_on", env_args or {})
            if path.suffix or len(path.parts) > 1:
                raise StorageError(f"no such run directory: {path}")
            return baseline_subject(str(target), env)
        if not has_config(path):
            raise StorageError(f"{path} is not a run directory: it has no config.yaml")
        origin = read_config(path) if (path / "config.yaml").exists() else {}
        refuse_other(origin.get("env", "airspace"), path)
        policy = load_policy(path, checkpoint)
        origin = origin or policy.meta
    refuse_other(origin.get("env"), path)
    stored = effective(origin["env"], origin.get("env_args") or {}, env_args or {})
    env = make_airspace(origin["env"], {**stored, **(env_args or {})})
    for what in ("observation_space", "action_space"):
        trained, now = (spaces.describe(getattr(x, what)) for x in (policy, env))
        if trained != now:
            raise ConfigError(
                f"the policy's {what.replace('_', ' ')} is {trained} and the environment's is {now}; analyse a policy "
                "with the env settings it was trained with (observation, neighbors)"
            )
    name = path.name if path is not None else str(origin["env"]).replace("airspace/", "")
    pilot = policy_pilot(policy, stochastic)
    one = None if env.scenario in SEVERAL else env.scenario
    agents = policy.algo.bound.spec.agents if own_policies(policy) else ()
    return Subject(name, pilot, env.replace(scenario=ANY), one, path, policy.meta.get("algorithm"), agents)


def refuse_other(env: object, path: Path | None) -> None:
    """Refuse what was not trained on the airspace."""
    if not str(env).startswith(("airspace/", "airspace:")) and env != "airspace":
        where = f"{path} is a run of '{env}'" if path is not None else f"the policy was trained on '{env}'"
        raise ConfigError(f"{where}; regimen analyse reads airspace runs (see `regimen envs`)")


def has_config(path: Path) -> bool:
    """Whether a folder is a run directory or a policy folder."""
    return (path / "config.yaml").exists() or (path / "config.json").exists()


def run_folders(path: Path) -> list[Path]:
    """The run directories in a folder that is not one itself, as `regimen train airspace/all` writes them; those of
    seeds may lie one level deeper."""
    if has_config(path) or not path.is_dir():
        return [path]
    folders = sorted(runs_below(path))
    if not folders:
        raise StorageError(f"{path} is not a run directory and holds none: no config.yaml in it or in its folders")
    return folders
