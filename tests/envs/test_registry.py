"""Everything that names an environment, and every way to get it wrong."""

import subprocess
import sys
import textwrap
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from regimen.config import trust
from regimen.envs.classic.cartpole import CartPole
from regimen.envs.registry import ENVS, EnvHandle, is_native, make_env, register_env, resolve
from regimen.errors import ConfigError, EnvError, UntrustedError

OWN = """
    import gymnasium
    from regimen.envs.classic.pendulum import Pendulum

    class Corridor(gymnasium.Env):
        reward_threshold = 1.0
        def __init__(self, length: int = 5, slip: float = 0.0, loud: bool = False):
            self.length, self.slip, self.loud = length, slip, loud
            self.observation_space = gymnasium.spaces.Discrete(length)
            self.action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.at = 0
            return self.at, {}
        def step(self, action):
            self.at = min(max(self.at + 2 * action - 1, 0), self.length - 1)
            done = self.at == self.length - 1
            parts = {"goal": float(done), "time": -0.1}
            return self.at, sum(parts.values()), done, False, {"reward_components": parts}

    def make(length=4):
        return Corridor(length)

    def light(gravity: float = 1.0):
        return Pendulum(gravity=gravity)

    def needs(size):
        return Corridor(size)

    def broken():
        raise RuntimeError("no\\nluck")

    number = 3
"""


class Counter(gymnasium.Env):
    """A class of this module, to be given as an object."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, top: int = 3):
        self.top, self.n = top, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.n += 1
        return np.full(1, self.n, np.float32), 1.0, self.n >= self.top, False, {}


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "corridor_env.py").write_text(textwrap.dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # undone, with what was imported from it
    yield tmp_path
    sys.modules.pop("corridor_env", None)


def test_listing_imports_neither_jax_nor_gymnasium():
    code = """import sys; from regimen.envs.registry import ENVS; print(len(ENVS))
for name in ("jax", "gymnasium"): print(*({name} & set(sys.modules)))"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == [str(len(ENVS))]


@pytest.mark.parametrize("name", list(ENVS))
def test_every_registered_name_is_a_described_native_environment(name):
    handle = resolve(name)
    assert handle.kind == "native" and handle.id == name and handle.make_host is None and is_native(name)
    assert handle.max_episode_steps >= 1 and ENVS[name].description
    assert isinstance(handle.observation_space, spaces.Space) and isinstance(handle.action_space, spaces.Space)


def test_fields_of_native_environments():
    env = resolve("cartpole", {"gravity": 3, "max_episode_steps": 1e3, "force": "5e0"})
    assert (env.native.gravity, env.native.force, env.max_episode_steps) == (3.0, 5.0, 1000)
    assert isinstance(env.native.gravity, float) and isinstance(env.native.max_episode_steps, int)
    assert env.env_args == {"gravity": 3.0, "max_episode_steps": 1000, "force": 5.0}
    assert make_env("cartpole", gravity=1.5) == CartPole(gravity=1.5)


def test_classes_and_instances_of_native_environments():
    assert resolve(CartPole, {"gravity": 2}).native.gravity == 2.0
    handle = resolve(CartPole(gravity=2.0), {"max_episode_steps": 10})
    assert handle.id == "cartpole" and handle.native == CartPole(gravity=2.0, max_episode_steps=10)
    assert handle.env_args == {"gravity": 2.0, "max_episode_steps": 10}
    assert resolve(handle.id, handle.env_args).native == handle.native


def test_gymnasium_ids():
    handle = resolve("gym:CartPole-v1", {"max_episode_steps": 7, "sutton_barto_reward": "true"})
    assert handle.kind == "host" and handle.native is None and not is_native("gym:CartPole-v1")
    assert (handle.max_episode_steps, handle.return_threshold) == (7, 475.0)
    env = handle.make_host()
    assert env.unwrapped._sutton_barto_reward is True and env is not handle.make_host()
    assert "PassiveEnvChecker" not in str(env)
    env.reset(seed=0)
    assert [env.step(i % 2)[3] for i in range(7)] == [False] * 6 + [True]
    assert resolve("gym:MountainCar-v0", {"goal_velocity": 0.01}).make_host().unwrapped.goal_velocity == 0.01
    assert resolve("gym:gymnasium:Pendulum-v1").action_space.shape == (1,)


def test_a_users_file_and_module(own):
    for where in ("corridor_env", "corridor_env.py", str(own / "corridor_env.py")):
        handle = resolve(f"{where}:Corridor", {"length": "3", "max_episode_steps": 9, "loud": "yes"})
        assert handle.kind == "host" and handle.id == f"{where}:Corridor"
        assert handle.reward_components == ("goal", "time") and handle.max_episode_steps == 9
        env = handle.make_host()
        assert env.unwrapped.length == 3 and env.unwrapped.loud is True
        env.reset()
        assert [env.step(0)[3] for _ in range(9)] == [False] * 8 + [True]
    assert not is_native("corridor_env:Corridor")
    assert resolve("corridor_env:make", {"length": 6}).observation_space.n == 6
    light = resolve("corridor_env:light", {"gravity": 2, "max_speed": 3})  # one for the factory, one for the result
    assert light.native.gravity == 2.0 and light.native.max_speed == 3.0 and is_native("corridor_env:light")
    assert resolve("corridor_env.py:make").make_host.__closure__ is not None
    assert type(resolve("corridor_env.py:light").native) is type(resolve("corridor_env.py:light").native)


def test_classes_factories_and_instances_of_gymnasium():
    handle = resolve(Counter, {"top": 2})
    assert handle.kind == "host" and handle.make_host().top == 2 and handle.id.endswith(":Counter")
    assert resolve(lambda: Counter(4)).make_host().top == 4
    env = Counter()
    env.top = 9  # what was changed after construction is kept
    handle = resolve(env, {"max_episode_steps": 5})
    first, second = handle.make_host(), handle.make_host()
    assert first.unwrapped is not env and first.unwrapped is not second.unwrapped
    assert first.unwrapped.top == 9 and handle.max_episode_steps == 5
    env.lock = threading.Lock()  # cannot be copied
    with pytest.raises(EnvError, match=r"cannot be copied.*pass its class or a factory"):
        resolve(env)
    made = gymnasium.make("Pendulum-v1", g=3.0)
    handle = resolve(made)
    assert handle.id == "gym:Pendulum-v1" and handle.env_args == {"g": 3.0, "max_episode_steps": 200}
    made.unwrapped.lock = threading.Lock()
    assert resolve(made).make_host().unwrapped.g == 3.0  # from its spec


def test_register_env():
    try:
        register_env("mine/counter", Counter, "counts")
        register_env("mine/pendulum", "gym:Pendulum-v1")
        assert resolve("mine/counter", {"top": 2}).id == "mine/counter"
        assert resolve("mine/pendulum").kind == "host" and not is_native("mine/pendulum")
        assert isinstance(make_env("mine/counter"), Counter)
        with pytest.raises(ConfigError, match="not a name"):
            register_env("a:b", Counter)
    finally:
        for name in ("mine/counter", "mine/pendulum"):
            ENVS.pop(name, None)


NEAR = [
    ("cartpol", {}, ConfigError, "unknown environment 'cartpol'; did you mean 'cartpole'"),
    ("CartPole-v1", {}, ConfigError, "did you mean 'gym:CartPole-v1'"),
    ("gym:CartPole-v9", {}, ConfigError, "did you mean 'gym:CartPole-v"),
    ("gym:CartPole", {}, ConfigError, "did you mean 'gym:CartPole-v"),
    ("gym:Nowhere/None-v0", {}, ConfigError, "no such Gymnasium environment"),
    ("gymm:CartPole-v1", {}, EnvError, "did you mean 'gym:...'"),
    ("cartpole", {"gravty": 1}, ConfigError, "env.gravty: cartpole has no such argument; did you mean 'gravity'"),
    ("cartpole", {"gravity": "strong"}, ConfigError, "env.gravity: 'strong' is not a number"),
    ("cartpole", {"gravity": float("nan")}, ConfigError, "env.gravity: nan is not a number"),
    ("cartpole", {"max_episode_steps": 1.5}, ConfigError, "env.max_episode_steps: 1.5 is not a whole number"),
    ("cartpole", {"max_episode_steps": 0}, ConfigError, "env.max_episode_steps: 0 is out of range"),
    ("gym:CartPole-v1", {"max_episode_steps": -1}, ConfigError, "env.max_episode_steps: -1 is out of range"),
    ("gym:CartPole-v1", {"sutton_barto": True}, ConfigError, "env.sutton_barto: .*'sutton_barto_reward'"),
    ("gym:CartPole-v1", {"sutton_barto_reward": 3}, ConfigError, "env.sutton_barto_reward: 3 is not true or false"),
    ("no_such_module:make", {}, EnvError, "cannot import the environment module 'no_such_module'"),
    ("no_such_file.py:make", {}, EnvError, "no such file"),
    ("math:", {}, ConfigError, "write module:factory"),
    ("math:pi", {}, EnvError, "float is neither a gymnasium.Env nor a native environment"),
    ("math:make", {}, EnvError, "math has no 'make'"),
]


@pytest.mark.parametrize(("env", "args", "kind", "words"), NEAR)
def test_bad_input_is_one_line(env, args, kind, words):
    with pytest.raises(kind, match=words) as error:
        resolve(env, args)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("env", "args", "kind", "words"),
    [
        ("corridor_env:Corridr", {}, EnvError, "has no 'Corridr'; did you mean 'Corridor'"),
        (
            "corridor_env:Corridor",
            {"lenth": 3},
            ConfigError,
            "env.lenth: .*has no such argument; did you mean 'length'",
        ),
        ("corridor_env:Corridor", {"length": "far"}, ConfigError, "env.length: 'far' is not a whole number"),
        ("corridor_env:broken", {}, EnvError, "cannot be made: RuntimeError: no luck"),
        ("corridor_env:needs", {}, ConfigError, "'size' has no default; give --env.size"),
        ("corridor_env:number", {}, EnvError, "int is neither"),
        ("bad_env.py:make", {}, EnvError, "cannot import the environment file 'bad_env.py': SyntaxError"),
        ("raising_env:make", {}, EnvError, "ModuleNotFoundError: No module named 'not_installed'"),
    ],
)
def test_bad_user_modules_are_one_line(own, env, args, kind, words):
    (own / "bad_env.py").write_text("def make(:\n")
    (own / "raising_env.py").write_text("import not_installed\n")
    with pytest.raises(kind, match=words) as error:
        resolve(env, args)
    assert "\n" not in str(error.value)


def test_a_missing_dependency_says_what_to_install():
    gymnasium.register("Missing-v0", "no_such_package.envs:Env")
    try:
        with pytest.raises(EnvError, match="gym:Missing-v0: No module named 'no_such_package'; pip install"):
            resolve("gym:Missing-v0")
    finally:
        gymnasium.registry.pop("Missing-v0")
    try:
        import Box2D  # noqa: F401
    except ImportError:
        with pytest.raises(EnvError, match=r"pip install .*gymnasium\[box2d\]"):
            resolve("gym:LunarLander-v3")


def test_vector_environments_and_half_made_ones_are_refused():
    with pytest.raises(EnvError, match="a vector environment"):
        resolve(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))

    class Half:
        observation_space = action_space = None
        max_episode_steps = 3

        def reset(self, key): ...
        def step(self, key, state, action): ...

    with pytest.raises(EnvError, match="Half has no reward_components, metric_reductions"):
        resolve(Half())


def test_handles_are_plain():
    assert isinstance(resolve("cartpole"), EnvHandle)
    assert set(resolve("cartpole").baselines) == {"heuristic"}


def test_a_module_may_register_when_it_is_asked(tmp_path, monkeypatch):
    (tmp_path / "late_envs.py").write_text(
        "import gymnasium\n"
        "def register_envs():\n"
        "    gymnasium.register('Late-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("gym:late_envs:Late-v0").max_episode_steps == 9
    with trust.judging(trust.named("gym:late_envs:Later-v0", "run/config.yaml")), pytest.raises(UntrustedError):
        resolve("gym:late_envs:Later-v0")
