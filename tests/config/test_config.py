"""Settings: layers, keys, types, ranges and the schedule, with one-line errors for everything that cannot be."""

import dataclasses
from dataclasses import dataclass

import pytest
import yaml

from regimen.config import schema as config_module
from regimen.config.algorithms.ppo import PPOConfig, RewardConfig
from regimen.config.fields import Count, Range
from regimen.config.layers import (
    build_config,
    from_dict,
    guess_device,
    leaf_types,
    merge,
    to_dict,
)
from regimen.config.regimen import describe, describe_budget, resolve
from regimen.config.schema import ALGORITHMS, RolloutConfig, TrainConfig, register_algorithm
from regimen.config.validation import coerce, field_marks, field_types, validate
from regimen.errors import ConfigError

ANY = "any:environment"  # no tuned settings: preset balanced


@dataclass(frozen=True)
class OtherConfig:
    """Another algorithm."""

    kappa: float = 0.005
    """Target update rate."""
    lr: float = 1e-3


@pytest.fixture
def other_algorithm():
    register_algorithm("other", "somewhere:Other", OtherConfig)
    yield "other"
    del ALGORITHMS["other"]


def write(path, **data):
    path.write_text(yaml.safe_dump(data))
    return str(path)


# --- layers ----------------------------------------------------------------------------------------------------------


def test_precedence(tmp_path):
    file = write(tmp_path / "c.yaml", algo={"lr": 2e-3, "epochs": 7}, seed=5)
    config = build_config("cartpole", preset="quality", config_file=file, overrides={"seed": 9})
    assert config.algo.minibatch_size == 128  # preset over default
    assert (config.algo.epochs, config.algo.lr) == (7, 2e-3)  # file over preset
    assert config.seed == 9  # override over file
    assert config.algo.gamma == PPOConfig().gamma  # default
    assert (config.env, config.algorithm, config.preset) == ("cartpole", "ppo", "quality")


def test_default_preset():
    assert build_config(ANY).preset == "balanced"
    assert build_config("cartpole").preset == "tuned"
    assert build_config("gym:CartPole-v1").algo == build_config("cartpole").algo


def test_file_names_env_algorithm_and_preset(tmp_path):
    file = write(tmp_path / "c.yaml", env="pendulum", algorithm="ppo", preset="debug")
    config = build_config(config_file=file)
    assert (config.env, config.preset, config.rollout.episodes) == ("pendulum", "debug", 3)
    assert build_config("cartpole", preset="fast", config_file=file).rollout.episodes == 5


def test_algorithm_read_first(other_algorithm, tmp_path):
    config = build_config("cartpole", overrides={"algo": "other", "algo.kappa": "0.1"})
    assert config.algo == OtherConfig(kappa=0.1)  # the preset's algo section was written for ppo
    assert config.preset == "balanced"
    file = write(tmp_path / "c.yaml", algorithm="other", algo={"kappa": 0.2})
    assert build_config("cartpole", config_file=file).algo == OtherConfig(kappa=0.2)
    assert build_config("cartpole", overrides={"algo": OtherConfig(kappa=0.3)}).algorithm == "other"


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        ("balanced", {"rollout.steps": 64}, (64, None)),
        ("big_batch", {"rollout.episodes": 10}, (None, 10)),
        ("balanced", {"rollout": {"steps": 64, "episodes": None}}, (64, None)),
        ("balanced", {"rollout.num_envs": 5}, (None, 10)),
    ],
)
def test_episodes_clear_steps_and_back(preset, overrides, expected):
    rollout = build_config(ANY, preset=preset, overrides=overrides).rollout
    assert (rollout.steps, rollout.episodes) == expected


def test_num_envs_of_another_schedule_is_not_kept():
    assert build_config("cartpole").rollout.num_envs == 8
    assert build_config("cartpole", overrides={"rollout.episodes": 10}).rollout.num_envs is None
    assert build_config("cartpole", overrides={"rollout.steps": 100}).rollout.num_envs is None
    assert build_config("cartpole", overrides={"rollout.steps": 512}).rollout.num_envs == 8
    assert build_config("cartpole", overrides={"rollout.episodes": 10, "num_envs": 2}).rollout.num_envs == 2


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"total_episodes": 50}, (None, 50)),
        ({"total_steps": 50}, (50, None)),
        ({"total_steps": 50, "total_episodes": 7}, (50, 7)),
        ({}, (100_000, None)),
    ],
)
def test_budgets(overrides, expected):
    config = build_config("cartpole", overrides=overrides)
    assert (config.total_steps, config.total_episodes) == expected


def test_stop_rule_replaced_whole():
    low = {"stop.metric": "eval/return_mean", "stop.above": 475.0, "stop.streak": 3}
    assert merge(low, {"stop.metric": None}) == {"stop.metric": None}
    assert merge(low, {"stop.below": 1.0}) == {"stop.metric": "eval/return_mean", "stop.below": 1.0, "stop.streak": 3}
    assert build_config("cartpole", overrides={"stop.metric": "none"}).stop.above is None


def test_env_args_merge_by_key(tmp_path):
    file = write(tmp_path / "c.yaml", env_args={"a": 1, "b": 2})
    config = build_config(ANY, preset="big_batch", config_file=file, overrides={"env.b": 3, "env__c_d": 4})
    assert config.env_args == {"max_episode_steps": 100, "a": 1, "b": 3, "c_d": 4}


def test_config_yaml_round_trip(tmp_path):
    overrides = {"hidden": [32, 16], "lr": 1e-5, "env.gravity": 9.8, "rollout.episodes": 4, "eval.every": "5e3 steps"}
    config = build_config("cartpole", overrides=overrides | {"out": "runs/x", "seed": 3})
    text = yaml.safe_dump(to_dict(config), sort_keys=False)
    assert from_dict(yaml.safe_load(text)) == config.replace(out=None)
    (tmp_path / "config.yaml").write_text(text)
    assert build_config(config_file=tmp_path / "config.yaml") == config.replace(out=None)
    gone = config.replace(preset="removed.yaml")  # a complete file needs no preset below it
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(gone)))
    assert build_config(config_file=tmp_path / "config.yaml") == gone.replace(out=None)


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        {"algo.lr": 0.5},
        {"algo__lr": 0.5},
        {"algo": {"lr": 0.5}},
        {"lr": 0.5},
        {"algo-lr".replace("-", "."): "5e-1"},
        {"algo": PPOConfig(lr=0.5)},
    ],
)
def test_spellings(overrides):
    assert build_config(ANY, overrides=overrides).algo.lr == 0.5


def test_more_spellings():
    config = build_config(ANY, overrides={"tracking-uri": "sqlite:///x", "track": False, "target-return": 3})
    assert (config.track.uri, config.track.enabled, config.stop.target_return) == ("sqlite:///x", False, 3.0)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"algo.lrr": 1}, ["unknown setting 'algo.lrr'", "did you mean 'algo.lr'?"]),
        ({"rolout.episodes": 1}, ["'rolout.episodes'", "'rollout.episodes'"]),
        ({"rollout": {"episode": 1}}, ["'rollout.episode'", "'rollout.episodes'"]),
        ({"eval.gamma": 1}, ["'eval.gamma'", "'algo.gamma'"]),
        ({"minibatchsize": 1}, ["'algo.minibatch_size'"]),
        ({"zzzzqqqq": 1}, ["unknown setting 'zzzzqqqq'", "--help"]),
        ({"algo.kappa": 1}, ["'algo.kappa'", "a setting of --algo other"]),
        ({"workers": 4}, ["engine.workers: there are workers only with --engine ray"]),
        ({"every": 1}, ["ambiguous", "eval.every", "log.every", "checkpoint.every"]),
        ({"episodes": 1}, ["total_episodes: 1", "rollout.episodes", "eval.episodes"]),
        ({"lr": 1, "algo.lr": 2}, ["algo.lr: set twice"]),
        ({"rollout": 5}, ["rollout: '5' is not a section", "steps, episodes, num_envs"]),
        ({"rollout.steps": 8, "rollout.episodes": 8}, ["rollout.steps and rollout.episodes are both set"]),
        ({"algorithm": "pppo"}, ["unknown algorithm 'pppo'", "'ppo'"]),
        ({"preset": "fats"}, ["unknown preset 'fats'", "'fast'"]),
    ],
)
def test_bad_keys(other_algorithm, overrides, words):
    with pytest.raises(ConfigError) as error:
        build_config(ANY, overrides=overrides)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_unknown_env():
    with pytest.raises(ConfigError, match="unknown environment 'cartpol'; did you mean 'cartpole'"):
        build_config("cartpol")
    with pytest.raises(ConfigError, match="no environment named"):
        build_config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("algo: {lrr: 1}", ["unknown setting 'algo.lrr'", "c.yaml"]),
        ("algo: {lr: fast}", ["algo.lr: 'fast' is not a number", "c.yaml"]),
        ("a: [", ["not valid YAML", "line"]),
        ("- 1", ["expected `key: value`"]),
        ("rollout: {steps: 4, episodes: 4}", ["both set", "c.yaml"]),
        ("!!python/object/apply:os.system ['true']", ["not valid YAML"]),
    ],
)
def test_bad_files(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        build_config(ANY, config_file=tmp_path / "c.yaml")
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["10 s", "10s", "5 sec", "1 minute", "2 h", "1.5 updates", "-1", "10 ssteps"])
def test_a_duration_is_no_count(text):
    """`10 s` was read as 10 updates."""
    with pytest.raises(ConfigError, match=r"eval\.every: .* is not a count; .*a time in seconds is refused"):
        Count.parse(text, "eval.every")
    with pytest.raises(ConfigError, match=r"eval\.every"):
        build_config(ANY, overrides={"eval.every": text})


@pytest.mark.parametrize(
    ("text", "n", "unit"),
    [("10", 10, "updates"), ("1e3 steps", 1000, "steps"), ("1 step", 1, "steps"), (7, 7, "updates")],
)
def test_counts(text, n, unit):
    assert Count.parse(text) == Count(n, unit) and Count.parse("never") is None


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        build_config(ANY, config_file=tmp_path / "none.yaml")


# --- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("1e6", int, 1_000_000),
        (1e6, int, 1_000_000),
        ("1_000_000", int, 1_000_000),
        (1_000_000.0, int, 1_000_000),
        (3, float, 3.0),
        ("3e-4", float, 3e-4),
        ("true", bool, True),
        ("False", bool, False),
        ([64, "32"], tuple[int, ...], (64, 32)),
        ("64,32", tuple[int, ...], (64, 32)),
        ("[64, 32]", tuple[int, ...], (64, 32)),
        (64, tuple[int, ...], (64,)),
        (None, int | None, None),
        ("none", float | None, None),
        ("null", str | None, None),
        (10, str, "10"),
        (1e5, str, "100000"),
        (Count(5, "steps"), str, "5 steps"),
        ("monte-carlo", field_types(PPOConfig)["returns"], "monte_carlo"),
    ],
)
def test_coerce(value, hint, expected):
    out = coerce(value, hint)
    assert out == expected and type(out) is type(expected)


def test_numpy_scalars():
    import numpy as np

    assert coerce(np.int64(3), int) == 3
    assert type(coerce(np.float32(0.5), float)) is float


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("algo.epochs", "many", "algo.epochs: 'many' is not a whole number"),
        ("algo.epochs", 1.5, "algo.epochs: 1.5 is not a whole number"),
        ("algo.epochs", True, "algo.epochs: True is not a whole number"),
        ("algo.epochs", None, "algo.epochs: none is not a whole number"),
        ("algo.lr", "nan", "algo.lr: 'nan' is not a number"),
        ("algo.lr", float("inf"), "algo.lr: inf is not a number"),
        ("algo.lr", [1], "algo.lr: [1] is not a number"),
        ("algo.vf_clip", "x", "algo.vf_clip: 'x' is not a number or none"),
        ("algo.normalize_obs", "maybe", "algo.normalize_obs: 'maybe' is not true or false"),
        ("network.hidden", ["a"], "network.hidden: ['a'] is not a list, each item a whole number"),
        ("network.activation", "tanhh", "is not one of tanh, relu, gelu, silu, elu; did you mean 'tanh'?"),
        ("device", "tpu", "device: 'tpu' is not one of auto, cpu, gpu"),
        ("out", False, "out: False is not text or none"),
        ("env_args", 3, "env_args: 3 is not a mapping"),
    ],
)
def test_wrong_types(key, value, expected):
    with pytest.raises(ConfigError) as error:
        build_config(ANY, overrides={key: value})
    assert expected in str(error.value)


def test_large_numbers_in_yaml(tmp_path):
    (tmp_path / "c.yaml").write_text("total_steps: 1e6\nalgo: {minibatch_size: 1_000, lr: 1e-3}\n")
    config = build_config(ANY, config_file=tmp_path / "c.yaml")
    assert (config.total_steps, config.algo.minibatch_size, config.algo.lr) == (1_000_000, 1_000, 1e-3)


# --- ranges ----------------------------------------------------------------------------------------------------------

SECTIONS = {type(getattr(TrainConfig(), f.name)): f.name + "." for f in dataclasses.fields(TrainConfig)}
SECTIONS[RewardConfig] = "algo.reward."
OWN = {entry.config: name for name, entry in ALGORITHMS.items()}  # hyper-parameters, by the algorithm that has them
SECTIONS |= dict.fromkeys(OWN, "algo.")
MARKS = {owner: field_marks(owner) for owner in (TrainConfig, *filter(dataclasses.is_dataclass, SECTIONS))}
OUTSIDE = [
    (OWN.get(owner, "ppo"), SECTIONS.get(owner, "") + name, value)
    for owner, marks in MARKS.items()
    for name, allowed in marks.items()
    if isinstance(allowed, Range)
    for value in [
        allowed.low if allowed.open else allowed.low - 1,
        *([allowed.high + 1] if allowed.high != float("inf") else []),
    ]
]


@pytest.mark.parametrize(("algo", "key", "value"), OUTSIDE)
def test_out_of_range(algo, key, value):
    base = {"rollout.episodes": "none"} if key == "rollout.steps" else {}
    with pytest.raises(ConfigError) as error:
        build_config(ANY, algo=algo, overrides=base | {key: value})
    assert str(error.value).startswith(f"{key}: ") and "must be" in str(error.value)
    assert f"{value:g}" in str(error.value) or str(value) in str(error.value)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_number_has_a_range(algo):
    """A new hyper-parameter is given a range, or named here as one that any finite number suits."""
    free = {"stop.target_return", "stop.above", "stop.below"}
    free |= {"algo.ent_floor_discrete", "algo.ent_floor_continuous"} if algo == "ppo" else set()
    others = set(OWN) - {ALGORITHMS[algo].config}
    ranged = {SECTIONS.get(o, "") + name for o, marks in MARKS.items() if o not in others for name in marks}
    numbers = {
        key
        for key, hint in leaf_types(algo).items()
        if any(hint in (t, t | None) for t in (int, float)) or hint == tuple[int, ...]
    }
    assert numbers - ranged == free


PERIODS = {SECTIONS.get(o, "") + name for o, marks in MARKS.items() for name, mark in marks.items() if mark is Count}


@pytest.mark.parametrize("key", sorted(PERIODS))
@pytest.mark.parametrize("value", ["sometimes", "5 apples", "1.5 steps", "-3"])
def test_bad_counts(key, value):
    with pytest.raises(ConfigError, match=f"{key}: '{value}' is not a count"):
        build_config(ANY, overrides={key: value})


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"stop.above": 3}, "stop.above: 3.0 needs stop.metric"),
        ({"stop.below": 3}, "stop.below: 3.0 needs stop.metric"),
        ({"stop.metric": "eval/x"}, "exactly one of stop.above and stop.below; neither is set"),
        ({"stop.metric": "x", "stop.above": 3, "stop.below": 2}, "exactly one of stop.above and stop.below; both are"),
        ({"total_episodes": "none"}, "no budget: set total_steps, total_episodes or stop.max_seconds"),
        ({"log.every": "never"}, "log.every: 'never'"),
    ],
)
def test_rules_between_fields(overrides, words):
    with pytest.raises(ConfigError) as error:
        build_config(ANY, overrides=overrides)
    assert words in str(error.value)


def test_validate_direct_construction():
    good = TrainConfig(total_steps=10)
    assert validate(good) is good
    with pytest.raises(ConfigError, match="both set"):
        validate(good.replace(rollout=RolloutConfig(steps=1, episodes=1)))
    with pytest.raises(ConfigError, match=r"algo\.gamma: 2 is out of range; it must be 0 to 1"):
        validate(good.replace(algo=PPOConfig(gamma=2.0)))


def test_own_validate_method_is_called():
    @dataclass(frozen=True)
    class Picky(PPOConfig):
        def validate(self):
            raise ConfigError("picky")

    with pytest.raises(ConfigError, match="picky"):
        validate(TrainConfig(total_steps=10, algo=Picky()))
    with pytest.raises(ConfigError, match=r"algo\.lr"):  # ranges are inherited
        validate(TrainConfig(total_steps=10, algo=Picky(lr=-1.0)))


@pytest.mark.parametrize(
    ("name", "target", "config"), [("A b", "m:C", OtherConfig), ("a", "m", OtherConfig), ("a", "m:C", int)]
)
def test_bad_registration(name, target, config):
    with pytest.raises(ConfigError):
        register_algorithm(name, target, config)
    assert set(config_module.ALGORITHMS) >= {"ppo"} and name not in config_module.ALGORITHMS


# --- the regimen -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rollout", "native", "expected"),
    [
        (RolloutConfig(), True, ("episodes", 10, 10)),
        (RolloutConfig(), False, ("episodes", 10, 5)),
        (RolloutConfig(episodes=100), True, ("episodes", 100, 50)),
        (RolloutConfig(episodes=7), False, ("episodes", 7, 7)),
        (RolloutConfig(episodes=128, num_envs=128), True, ("episodes", 128, 128)),
        (RolloutConfig(steps=2048), True, ("steps", 2048, 8)),
        (RolloutConfig(steps=2048), False, ("steps", 2048, 8)),
        (RolloutConfig(steps=100), True, ("steps", 100, 5)),
        (RolloutConfig(steps=2048, num_envs=64), True, ("steps", 2048, 64)),
        (RolloutConfig(steps=1), True, ("steps", 1, 1)),
    ],
)
def test_resolve(rollout, native, expected):
    regimen = resolve(TrainConfig(rollout=rollout), native)
    assert (regimen.kind, regimen.n, regimen.num_envs) == expected


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"rollout.episodes": 10, "num_envs": 4},
            ["episodes: 10", "num_envs 4", "num_envs 2 or 5", "episodes 8 or 12"],
        ),
        ({"rollout.episodes": 7, "num_envs": 9}, ["num_envs 7,", "episodes 9"]),
        ({"rollout.steps": 100, "num_envs": 8}, ["steps: 100", "num_envs 5 or 10", "steps 96 or 104"]),
        ({"rollout.steps": 13, "num_envs": 12}, ["num_envs 1 or 13", "steps 12 or 24"]),
    ],
)
def test_impossible_schedule(overrides, words):
    with pytest.raises(ConfigError) as error:
        build_config(ANY, overrides=overrides)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("overrides", "cap", "expected"),
    [
        ({}, 500, "update every 10 episodes, at most 5,000 steps; 4 epochs of minibatches of 64"),
        ({}, None, "update every 10 episodes; 4 epochs of minibatches of 64"),
        (
            {"rollout.steps": 2048, "epochs": 1},
            500,
            "update every 2,048 steps, 256 in each of 8 environments; 1 epoch of minibatches of 64",
        ),
        ({"rollout.steps": 50}, 500, "update every 50 steps, 10 in each of 5 environments; 4 epochs of the full batch"),
        ({"preset": "single_episode"}, 200, "update every episode, at most 200 steps; 1 epoch of the full batch"),
    ],
)
def test_describe(overrides, cap, expected):
    config = build_config(ANY, overrides=overrides)
    assert describe(config, resolve(config, native=True, max_episode_steps=cap)) == expected


def test_describe_budget():
    regimen = resolve(TrainConfig(), native=True)
    assert describe_budget(TrainConfig(total_steps=100_000), regimen) == "100,000 steps"
    assert describe_budget(TrainConfig(total_steps=10, total_episodes=2), regimen) == (
        "10 steps or 2 episodes, which whole updates of 10 overrun: at most 10 episodes will be used"
    )
    assert describe_budget(TrainConfig(total_steps=10, total_episodes=20), regimen) == "10 steps or 20 episodes"


def test_guess_device(monkeypatch):
    assert guess_device("gpu") == "gpu"
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert guess_device("auto") == "cpu"


def test_a_budget_that_whole_updates_overrun_says_what_will_be_used():
    config = TrainConfig(total_episodes=300, rollout=RolloutConfig(episodes=512))
    words = "300 episodes, which whole updates of 512 overrun: 512 episodes will be used"
    assert describe_budget(config, resolve(config, native=True)) == words
    fits = config.replace(total_episodes=1024)
    assert describe_budget(fits, resolve(fits, native=True)) == "1,024 episodes"
    steps = TrainConfig(total_steps=1000, rollout=RolloutConfig(steps=384))
    assert "1,152 steps will be used" in describe_budget(steps, resolve(steps, native=True))
