"""check_env on good environments, and on ones broken in one way each."""

import dataclasses
import re

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from regimen.envs.check import Problem, check_env
from regimen.envs.protocol import NativeEnv, native_env
from regimen.errors import ConfigError
from regimen.types import TimeStep


@pytest.mark.parametrize(
    "env",
    [
        "cartpole",
        "pendulum",  # its action space depends on a field, which is traced in compiled code
        "probe/masked",
        "probe/dict",
        "probe/components",
        "probe/hybrid",
        "gym:CartPole-v1",
        "gym:Pendulum-v1",
    ],
)
def test_good_environments_have_no_problems(env):
    assert check_env(env) == []


def test_bad_arguments_are_the_callers():
    with pytest.raises(ConfigError, match="did you mean 'cartpole'"):
        check_env("cartpol")
    assert check_env("no_such_module:make")[0].level == "error"
    assert str(Problem("warning", "x")) == "warning: x"


def errors(problems):
    return [p.message for p in problems if p.level == "error"]


def warnings(problems):
    return [p.message for p in problems if p.level == "warning"]


# --- host ------------------------------------------------------------------------------------------------------------


class Walk(gymnasium.Env):
    """A good environment; a test changes one thing."""

    def __init__(self, **changes):
        self.observation_space = changes.pop("observation_space", spaces.Box(-9.0, 9.0, (2,), np.float32))
        self.action_space = changes.pop("action_space", spaces.Discrete(3))
        self.changes = changes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.changes.get("reset", lambda env: (np.zeros(2, np.float32), {}))(self)

    def step(self, action):
        self.t += 1
        out = {
            "obs": self.np_random.uniform(-1, 1, 2).astype(np.float32),
            "reward": 1.0,
            "terminated": self.t >= 10,
            "truncated": False,
            "info": {},
        }
        if "returns" in self.changes:
            return self.changes["returns"]
        return tuple(self.changes[name](self, action) if name in self.changes else out[name] for name in out)


def no_seed(env, *args, **kwargs):
    raise TypeError("reset() got an unexpected keyword argument 'seed'")


BROKEN = [
    ({"observation_space": None}, "observation_space is None"),
    ({"observation_space": spaces.Text(3)}, "observation space.* is not supported"),
    ({"action_space": spaces.Dict({"a": spaces.Text(3)})}, "action space.* is not supported"),
    ({"action_space": spaces.Box(0, 3, (1,), np.int32)}, "action space.* is not supported"),
    ({"obs": lambda env, a: np.zeros(3, np.float32)}, r"observation of step has shape \(3,\); its space says \(2,\)"),
    ({"obs": lambda env, a: np.array([np.nan, 0], np.float32)}, "observation of step is not finite .nan at index 0"),
    ({"obs": lambda env, a: np.array([10, 0], np.float32)}, "leaves its space.*widen the space"),
    ({"obs": lambda env, a: np.array(["a", "b"])}, "observation of step has dtype"),
    ({"observation_space": spaces.Discrete(3), "reset": lambda env: (3, {})}, "observation of reset leaves its space"),
    ({"observation_space": spaces.Dict({"a": spaces.Discrete(3)})}, "has the keys ndarray; the space has"),
    ({"reward": lambda env, a: np.ones(3)}, r"reward of shape \(3,\)"),
    ({"reward": lambda env, a: float("inf")}, "reward inf; it must be finite"),
    ({"reward": lambda env, a: float("nan")}, "reward nan; it must be finite"),
    ({"reward": lambda env, a: "1.5"}, "reward '1.5'; it must be a number"),
    ({"reward": lambda env, a: ["1"]}, "it must be a number"),
    ({"reward": lambda env, a: [1.0, [2.0]]}, "it must be a number"),
    ({"reward": lambda env, a: None}, "reward None; it must be a number"),
    ({"reward": lambda env, a: 1e38}, r"reward 1e\+38, whose square overflows float32"),
    ({"terminated": lambda env, a: 0}, r"terminated = 0 \(int\); it must be a bool"),
    ({"truncated": lambda env, a: None}, "truncated = None"),
    ({"info": lambda env, a: None}, "step returned info = None"),
    ({"returns": (np.zeros(2), 1.0, False, {})}, "step returned a tuple of 4"),
    ({"reset": lambda env: np.zeros(2, np.float32)}, "reset returned a ndarray; it must be .obs, info."),
    ({"reset": no_seed}, "give reset the keyword arguments seed and options"),
    ({"obs": lambda env, a: 1 / 0}, r"raised ZeroDivisionError: .*line \d+ of .*test_check.py"),
    ({"info": lambda env, a: {"reward_components": {"a": 0.25, "b": 0.5}}}, "sums to 0.75; the reward is 1"),
    ({"info": lambda env, a: {"action_mask": np.ones(2)}}, r"has shape \(2,\); the action space has 3 choices"),
    ({"info": lambda env, a: {"action_mask": np.zeros(3)}}, "allows no action"),
]


@pytest.mark.parametrize(("changes", "words"), BROKEN)
def test_broken_gymnasium_environments(changes, words):
    found = check_env(lambda: Walk(**changes), steps=30)
    assert any_match(words, errors(found)), found


def any_match(words, messages):
    return any(re.search(words, m) and "\n" not in m for m in messages)


def test_components_that_vanish_are_named():
    parts = {"reward_components": {"a": 0.5, "b": 0.5}}
    found = check_env(lambda: Walk(info=lambda env, a: parts if env.t < 3 else {}), steps=30)
    assert any_match("must be a dict with the keys a, b", errors(found))


DOUBTFUL = [
    ({"obs": lambda env, a: np.zeros(2)}, "has dtype float64, its space float32"),
    ({"reward": lambda env, a: np.ones(1)}, "return float"),
    ({"terminated": lambda env, a: False}, "no episode ended in 60 random steps"),
    ({"obs": lambda env, a: np.random.uniform(-1, 1, 2).astype(np.float32)}, "draw from self.np_random"),  # noqa: NPY002
    ({"action_space": spaces.Box(-np.inf, np.inf, (1,))}, "action space .* is unbounded"),
    (
        {
            "observation_space": spaces.Box(-np.inf, np.inf, (2,)),
            "obs": lambda env, a: np.full(2, 400, np.float32),
        },
        "reaches 400; train with --algo.normalize_obs true",
    ),
]


@pytest.mark.parametrize(("changes", "words"), DOUBTFUL)
def test_doubtful_gymnasium_environments(changes, words):
    found = check_env(lambda: Walk(**changes), steps=60)
    assert any_match(words, warnings(found)) and not errors(found), found


def test_masks_are_obeyed():
    def obs(env, action):
        assert action == 1
        return np.zeros(2, np.float32)

    mask = {"action_mask": np.array([0, 1, 0], np.int8)}
    env = {"obs": obs, "info": lambda env, a: mask, "reset": lambda env: (np.zeros(2, np.float32), mask)}
    assert check_env(lambda: Walk(**env), steps=30) == []


# --- native ----------------------------------------------------------------------------------------------------------


@native_env
class Drift(NativeEnv):
    """A good environment; a test changes one method."""

    max_episode_steps: int = 5
    rate: float = 0.1
    observation_space = spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key):
        state = jax.random.uniform(key, (2,))
        return state, state

    def step(self, key, state, action):
        state = jnp.clip(state + self.rate * action, -9.0, 9.0)
        return state, TimeStep(obs=state, reward=jnp.float32(1.0), terminated=state[0] > 8)


def step_with(**changes):
    def step(self, key, state, action):
        state, ts = Drift.step(self, key, state, action)
        state = changes["state"](state) if "state" in changes else state
        fields = {k: f(state) for k, f in changes.items() if k != "state"}
        return state, dataclasses.replace(ts, **fields)

    return step


def python_if(self, key, state, action):
    if state[0] > 0:
        state = state + 1
    return state, TimeStep(obs=state, reward=jnp.float32(1.0), terminated=jnp.bool_(False))


def with_numpy(self, key, state, action):
    return state, TimeStep(obs=state, reward=np.sum(np.asarray(state)), terminated=jnp.bool_(False))


def numpy_random(self, key):
    state = jnp.asarray(np.random.uniform(size=2), jnp.float32)  # noqa: NPY002
    return state, state


BROKEN_NATIVE = [
    ({"step": python_if}, r"step failed: it uses Python's if.*line \d+ of .*test_check.py"),
    ({"step": with_numpy}, "step failed: it hands a traced value to numpy"),
    ({"reset": numpy_random}, "two results for one key; draw from the key"),
    ({"reset": lambda self, key: jnp.zeros(2)}, "must be .state, obs."),
    ({"reset": lambda self, key: (jnp.zeros(2), jnp.zeros(3))}, r"shape \(3,\); its space says \(2,\)"),
    ({"step": lambda self, key, state, action: (state, 1.0)}, "must return .state, TimeStep"),
    (
        {"step": step_with(state=lambda s: s.astype(jnp.int32))},
        r"state of step differs.*was float32\[2\] and became int32",
    ),
    ({"step": step_with(obs=lambda s: s[:1])}, "observation of step differs"),
    ({"step": step_with(obs=lambda s: s / 0.0)}, "observation of step is not finite"),
    ({"step": step_with(obs=lambda s: s + 20)}, "leaves its space"),
    ({"step": step_with(reward=lambda s: None)}, "step's reward is None; it must be a number"),
    ({"step": step_with(reward=lambda s: "1.5")}, "step"),
    ({"step": step_with(reward=lambda s: jnp.float32(1e38))}, r"reward 1e\+38, whose square overflows float32"),
    ({"step": step_with(reward=lambda s: s)}, r"reward has shape \(2,\); its components are total"),
    ({"step": step_with(reward=lambda s: jnp.log(-s[0] - 1))}, "reward that is not finite"),
    ({"step": step_with(terminated=lambda s: s[0])}, "terminated is float32"),
    ({"step": step_with(truncated=lambda s: s > 0)}, r"truncated is bool\[2\]"),
    ({"step": step_with(metrics=lambda s: {"x": s[0]})}, "metrics are .'x'.; metric_reductions names"),
    ({"metric_reductions": {"x": "median"}}, "metric_reductions.'x'. is 'median'; use last, sum"),
    ({"reward_components": ("a", "b")}, r"its components are a, b, so it must be \(2,\)"),
    (
        {"action_mask": lambda self, state: jnp.ones(3, bool)},
        r"action mask of shape \(3,\): Discrete\(2\) has 2 options",
    ),
    ({"action_mask": lambda self, state: jnp.zeros(2, bool)}, "action_mask.state. allows no action"),
]


@pytest.mark.parametrize(("changes", "words"), BROKEN_NATIVE)
def test_broken_native_environments(changes, words):
    cls = native_env(type("Broken", (Drift,), dict(changes)))
    found = check_env(cls, steps=8)
    assert any_match(words, errors(found)), found


def test_native_environments_must_be_pytrees():
    plain = type("Plain", (), {n: getattr(Drift, n) for n in dir(Drift) if not n.startswith("__")})
    assert any_match("decorate the class with @", errors(check_env(plain())))

    @native_env
    class Listed(Drift):
        table: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(3))

    assert any_match("every call would compile again", errors(check_env(Listed)))


@native_env
class Countdown(NativeEnv):
    """Observes how much time is left, which is negative past its limit."""

    max_episode_steps: int = 5
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key):
        return jnp.int32(0), jnp.ones(1)

    def step(self, key, state, action):
        left = 1.0 - (state + 1) / self.max_episode_steps
        return state + 1, TimeStep(obs=left[None], reward=jnp.float32(1.0), terminated=jnp.bool_(False))


@native_env
class Relay(NativeEnv):
    """Two agents of which the first is over after three steps and the second after five, each said once; nothing may be
    observed after that."""

    max_episode_steps: int = 50
    agents = ("first", "second")
    observation_space = spaces.Box(0.0, 5.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key):
        return jnp.int32(0), jnp.zeros((2, 1))

    def alive(self, state):
        return state < jnp.array([3, 5])

    def step(self, key, state, action):
        now = state + 1
        obs = jnp.full((2, 1), now, jnp.float32)
        return now, TimeStep(obs=obs, reward=jnp.zeros((2, 1)), terminated=now == jnp.array([3, 5]))


@pytest.mark.parametrize("env", [Countdown, Relay])
def test_no_step_past_the_end_of_an_episode(env):
    assert check_env(env, steps=60) == []


def test_the_good_native_environment_is_good():
    assert check_env(Drift, steps=8) == []
