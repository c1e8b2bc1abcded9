"""The preset files: what each says, that each builds, and a user's own."""

import pytest

from regimen.config import presets
from regimen.config.layers import build_config, from_preset
from regimen.config.regimen import resolve
from regimen.errors import ConfigError

ANY = "any:environment"


@pytest.mark.parametrize(
    ("name", "episodes", "epochs", "minibatch", "total"),
    [
        ("fast", 5, 2, 32, 100),
        ("balanced", 10, 4, 64, 1000),
        ("quality", 20, 6, 128, 2000),
        ("debug", 3, 1, 16, 50),
        ("single_episode", 1, 1, 1_000_000, 1000),
        ("per_episode_ppo", 1, 10, 64, 1000),
        ("monte_carlo_episode", 1, 4, 1_000_000, 1000),
        ("parallel_25", 25, 4, 1_000_000, 2500),
    ],
)
def test_episode_presets(name, episodes, epochs, minibatch, total):
    config = build_config(ANY, preset=name)
    assert (config.rollout.episodes, config.rollout.steps) == (episodes, None)
    assert (config.algo.epochs, config.algo.minibatch_size, config.total_episodes) == (epochs, minibatch, total)
    assert config.preset == name


def test_particulars():
    config = build_config(ANY, preset="per_episode_ppo")
    assert (config.algo.lr, config.stop.convergence_window, config.stop.patience) == (3e-4, 100, 10)
    assert (config.eval.every, config.eval.episodes) == ("50 episodes", 10)
    config = build_config(ANY, preset="monte_carlo_episode")
    assert (config.algo.returns, config.algo.normalize_advantage, config.algo.lr) == ("monte_carlo_z", False, 2e-3)
    config = build_config(ANY, preset="big_batch", overrides={"device": "cpu"})
    assert (config.rollout.steps, config.env_args) == (20_000, {"max_episode_steps": 100})
    assert build_config(ANY, preset="big_batch", overrides={"device": "gpu"}).rollout.num_envs == 200
    regimen = resolve(build_config(ANY, preset="parallel_25"), native=False)
    assert (regimen.kind, regimen.n, regimen.num_envs) == ("episodes", 25, 25)
    assert build_config(ANY, preset="big-batch").preset == "big_batch"


@pytest.mark.parametrize("preset", [*presets.list_presets().values(), *presets.list_tuned().values()])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_preset_forms_a_schedule(preset, device):
    config = from_preset(preset, device)
    assert preset.description
    for native in (True, False):
        resolve(config, native)


def test_the_air_traffic_presets_say_what_their_document_says():
    """Its tables, for a CPU and for a GPU. SAC's training intensities of 1.0 and 1.5 are transitions trained for each
    one sampled, so gradient steps times the batch; IMPALA has one rate and one minibatch."""
    both = ("cpu", "gpu")
    tables: dict[str, dict[str, tuple[object, object]]] = {
        "ppo": {"lr": (3e-4, 5e-4), "minibatch_size": (256, 512), "epochs": (8, 10), "rollout": (4096, 8192)},
        "sac": {"lr": (3e-4, 5e-4), "batch_size": (4096, 8192), "learning_starts": (5000, 2000)},
        "impala": {"lr": (6e-4,) * 2, "minibatch_size": (512,) * 2, "rollout": (4096, 8192)},
        "appo": {"lr": (3e-4,) * 2, "rollout": (2048, 4096)},
        "cql": {"lr": (3e-4, 5e-4), "critic_lr": (3e-4, 6e-4), "min_q_weight": (5.0, 4.0), "tau": (0.005, 0.01)},
    }
    tables["sac"] |= {"buffer_size": (500_000, 1_000_000), "intensity": (1.0, 1.5)}
    alike = {
        "ppo": {"gae_lambda": 0.95, "clip_eps": 0.1, "max_grad_norm": 1.0, "ent_coef": 0.01, "kl_coef": 0.2},
        "sac": {"tau": 0.01, "alpha": 0.1, "max_grad_norm": 5.0, "critic_lr": None, "alpha_lr": None, "n_step": 1},
        "impala": {"rho_clip": 1.0, "pg_rho_clip": 1.0, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 5.0},
        "appo": {"ent_coef": 0.001, "max_grad_norm": 5.0},
        "cql": {"alpha": 0.1, "n_step": 1},
    }
    networks = dict.fromkeys(("ppo", "impala"), ((256, 256), "tanh"))
    networks |= {"appo": ((128, 128), "relu"), "sac": ((256, 256), "relu"), "cql": ((256, 256), "relu")}
    for name, table in tables.items():
        for i, device in enumerate(both):
            config = build_config("airspace/head_on", preset=f"atc_{name}", overrides={"device": device})
            algo = vars(config.algo) | {"rollout": config.rollout.steps}
            if name == "sac":
                algo["intensity"] = algo["update_ratio"] * algo["batch_size"]
            expected = {key: values[i] for key, values in table.items()} | alike[name] | {"gamma": 0.995}
            assert {key: algo[key] for key in expected} == expected, (name, device)
            assert config.algorithm == name and config.stop.zero_conflict_streak == 20
            assert (config.network.hidden, config.network.activation) == networks[name]


def test_tuned():
    classic = ["acrobot", "cartpole", "mountain_car", "mountain_car_continuous", "pendulum"]
    hybrid = [
        "catch_point",
        "goal",
        "hard_goal",
        "hard_move",
        "moving",
        "platform",
        "sliding",
        "probe/hybrid",
        "durotaxis",
        "durotaxis/ratio",
    ]
    defence = ["network_defense", "network_defense/workflow"]
    named = (
        "any",
        "random",
        "parallel",
        "chase_2x2",
        "chase_3p1",
        "chase_4all",
        "merge_2x2",
        "merge_3p1",
        "merge_4all",
    )
    flights = [f"airspace/{name}" for name in named]
    others = ["cartpole/positions", "lunar_lander", "minatar", *defence, *flights]
    assert sorted(presets.list_tuned()) == sorted([*classic, *hybrid, *others])
    assert sorted(presets.list_tuned("impala")) == sorted(presets.list_tuned("appo")) == ["airspace/any", "cartpole"]
    assert build_config("gym:CartPole-v1", algo="appo").algo.epochs == 4
    assert build_config("durotaxis/ratio").network.name == "graph"
    assert build_config("cartpole", preset="tuned") == build_config("cartpole")
    assert build_config("gym:Pendulum-v1").preset == build_config("gymnax:Pendulum-v1").preset == "tuned"
    assert presets.tuned_for("gym:CartPole-v9") is None
    assert presets.tuned_for("../fast") is None
    assert build_config("airspace/head_on").env_args == build_config("airspace:mine.json", algo="sac").env_args
    calm, any_other = (build_config(f"airspace/{name}") for name in ("parallel", "cross_4all"))
    assert (
        calm.env_args == any_other.env_args | {"action_cost": 0.2, "margin": 0.5} and calm.rollout == any_other.rollout
    )
    assert build_config("airspace/random").env_args != build_config("airspace/mixed").env_args
    with pytest.raises(
        ConfigError,
        match="'any:environment' has no tuned settings for ppo; these have: acrobot, airspace/any, airspace/chase",
    ):
        build_config(ANY, preset="tuned")


def test_own_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nsettings: {algo: {lr: 1e-2}}\ngpu: {rollout: {steps: 64}}\n")
    config = build_config("cartpole", preset=str(path), overrides={"device": "gpu"})
    assert (config.algo.lr, config.rollout.steps, config.total_episodes) == (1e-2, 64, 1000)
    assert build_config("cartpole", preset=str(path), overrides={"device": "cpu"}).rollout.episodes == 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("algo: {lr: 1}", ["unknown key 'algo'", "settings"]),
        ("settings: 3", ["settings must be a dict"]),
        ("settings: {algo: {lrr: 3}}", ["mine.yaml", "'algo.lrr'", "'algo.lr'"]),
        ("settings: {algo: {lr: -3}}", ["algo.lr: -3 is out of range"]),
        ("[", ["not valid YAML"]),
    ],
)
def test_bad_own_file(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        build_config("cartpole", preset=str(path))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_unknown_preset():
    with pytest.raises(ConfigError, match="unknown preset 'balance'; did you mean 'balanced'"):
        presets.load_preset("balance")
    with pytest.raises(ConfigError, match="cannot be read"):
        presets.load_preset("nowhere.yaml")
