"""Names of other trainers are answered with ours, everywhere a setting can be named."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

import regimen
from regimen.cli.main import VERBS, main
from regimen.cli.train import read
from regimen.config import layers, lookup, names
from regimen.config.catalogue import ENVS as ENVIRONMENTS
from regimen.config.domains import domains
from regimen.config.schema import ALGORITHMS
from regimen.errors import ConfigError, RegimenError
from regimen.sources import trajectory_rows

DOCS = Path(__file__).parents[2] / "docs"
LEAVES = {algo: lookup.usable(algo) for algo in ALGORITHMS}


ENVS = {"sac": "pendulum", "cql": "pendulum", "empowerment": "world/corr5"}
RIGHT = {"algo.lr_schedule": "linear", "algo.gae_lambda": "0.9", "env": "head_on", "algorithm": "PPO"}
RIGHT |= {"algo.gamma": "0.9", "algo.gamma_r": "0.9", "algo.activation": "relu", "network.activation": "relu"}
RIGHT |= {"network.hidden": "[32, 16]", "network.memory": "gru", "algo.log_std_init": "-1", "env_args": None}
RIGHT |= {"algo.hidden_dim": "8"}
BOOLEAN = ("algo.normalize_obs", "algo.normalize_reward", "algo.normalize_advantage", "algo.learn_alpha")
WHAT = re.compile(r"here it is (?:`(regimen [^`]+)`|--?([\w.-]+)((?: (?!\()(?:'[^']*'|\S+))?))")


@pytest.mark.parametrize("name", list(names.names().values()), ids=lambda n: n.other)
def test_every_entry_leads_to_settings(name):
    for ours in name.ours:
        assert ours.startswith("env_args") or any(ours in leaves for leaves in LEAVES.values()), ours
    if name.command or names.setting_of(name, LEAVES["ppo"]):
        assert lookup.resolve_key(name.other, "ppo") is None, "it is a setting already"
    assert all(name.writes[s] is not False or name.ours[s] for s in name.ours), "what differs is said"


def given_for(name, setting):
    """A value that somebody may have given under another trainer's name."""
    if isinstance(name.writes.get(setting), dict):
        return "false"
    return "true" if setting in BOOLEAN else RIGHT.get(setting, "1")


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_every_answer_is_a_command_that_can_be_read(algo, tmp_path, monkeypatch):
    """The whole table with each algorithm: the setting named is one of this algorithm, and what is to be written can be
    written; or the algorithm has none, and then no setting is offered."""
    monkeypatch.chdir(tmp_path)
    train = ["train", ENVS.get(algo, "cartpole"), "--algo", algo]
    for other, name in names.names().items():
        setting = names.setting_of(name, LEAVES[algo])
        value = given_for(name, setting)
        end = lookup.suggest(other, algo, dash="--", original=value)
        if name.command:
            assert name.command in end
            continue
        if setting is None:
            explained = "the prior system" in end or "named otherwise" in end
            assert explained or end.startswith(f"; {algo} has none, only "), (other, end)
            continue
        if "named otherwise here" in end:  # empowerment's own answer
            continue
        told = WHAT.match(end.removeprefix("; "))
        assert told, (other, end)
        if told.group(1):
            argv = shlex.split(told.group(1)) + train[2:]
            assert "ENV" in argv or read(argv[2:])[0].env
            continue
        assert setting == "env_args" or told.group(2).replace("-", "_").replace("env.", "env_args.", 1) in (
            setting,
            *(
                {
                    "track.enabled": ("no_track", "track.enabled"),
                    "algorithm": ("algo",),
                    "engine.workers": ("engine",),
                }.get(setting, ())
            ),
        ), (other, end)
        if told.group(3) and "KEY" not in end:
            flags = shlex.split(f"--{told.group(2)}{told.group(3)}")
            use = re.match(r"algo\.(\w_\w)_target_update_interval", setting)
            extra = [f"--algo.{use[1].replace('_', '-')}-use-network", "true"] if use else []
            tokens = [*train[1:], *flags, *extra] if setting not in ("env", "algorithm") else [train[1], *flags]
            config, _ = read(tokens)
            assert config.total_steps or config.total_episodes


def test_no_answer_means_another_unit():
    """What counts something else there is written in its own unit, or without its number."""
    told = {
        "checkpoint_every": ("ppo", "checkpoint.every: 20 steps"),
        "eval_frequency": ("ppo", "eval.every: 20 episodes"),
        "train_batch_size": ("sac", "algo.batch_size: 20 (rows of one"),
        "training_intensity": ("sac", "algo.update_ratio (gradient steps per env step; theirs counts rows"),
        "n_steps": ("ppo", "rollout.steps (ours counts"),
        "max_steps": ("ppo", "total_steps (the budget; the length"),
        "max_steps_per_episode": ("ppo", "env_args.max_episode_steps: 20"),
        "num_minibatches": ("ppo", "algo.minibatch_size (rows"),
        "value_coef": ("ppo", "algo.vf_coef (of half the squared error"),
        "vf_loss_coeff": ("appo", "algo.vf_coef (of half the squared error"),
        "vf_clip_param": ("ppo", "algo.vf_clip (how far a value may move"),
        "log_interval": ("sac", "log.every (`4 updates` or `4 episodes`"),
        "polyak": ("sac", "algo.tau (ours"),
        "neighbor_topk": ("ppo", "env_args.neighbors: 20"),
    }
    for other, (algo, words) in told.items():
        assert lookup.suggest(other, algo, original=20).startswith(f"; here it is {words}"), other


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("head_on --algo PPO --timesteps 100000 --gpu", "here it is --total-steps 100000"),
        ("head_on --gpu", "here it is --device gpu"),
        ("--scenario head_on", "here it is `regimen train airspace/head_on`"),
        ("--env-id CartPole-v1", "here it is `regimen train gym:CartPole-v1`"),
        (
            "--scenario head_on --timesteps 100000 --gpu",
            "head_on`; --timesteps: here it is --total-steps 100000; --gpu: here",
        ),
        ("head_on --collision-nm 3", "here it is --env.collision-nm 3"),
        ("cartpole --max-episode-steps 100", "here it is --env.max-episode-steps 100"),
        ("cartpole --steps-per-episode 100", "here it is --env.max-episode-steps 100"),
        ("cartpole --agent PPO", "here it is --algo ppo"),
        ("cartpole --enable-mlflow false", "here it is --no-track"),
        ("cartpole --max-steps-per-episode 500", "here it is --env.max-episode-steps 500"),
        ("pendulum --algo SAC --clip-range 0.1", "sac has none, only ppo, appo (algo.clip_eps)"),
        ("pendulum --algo SAC --algo.clip-eps 0.1", "sac has none: it is a setting of --algo ppo or appo"),
    ],
)
def test_what_people_type_first(argv, words):
    with pytest.raises(RegimenError) as error:
        read(argv.split())
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("argv", "answers"),
    [
        (
            "-s head_on -a PPO -t 100000 --num-workers 0",
            [
                "-s: here it is `regimen train airspace/head_on`",
                "-a: here it is --algo ppo",
                "-t: here it is --total-steps 100000",
                "--num-workers: here it is --engine.workers 0 (with `engine: ray`)",
            ],
        ),
        ("cartpole --num-env-runners 2", ["here it is --engine ray --engine.workers 2"]),
        (
            "cartpole --episodes 1000 --max-steps 500 --eval-episodes 10 --batch-size 64",
            [
                "--episodes: here it is --total-episodes 1000",
                "--max-steps: here it is --total-steps (the budget; the length",
                "--eval-episodes: here it is --eval.episodes 10",
                "--algo.batch-size: here it is --algo.minibatch-size 64",  # though other algorithms have it
            ],
        ),
        ("cartpole --hidden-sizes 64 64", ["--hidden-sizes'; here it is --network.hidden '64 64'"]),
        ("cartpole --env-id x --no-anneal-lr", ["--no-anneal-lr: here it is --algo.lr-schedule constant"]),
        ("cartpole --no-enable-mlflow", ["here it is --no-track"]),
        ("cartpole --lr-decay 3 --learning-rate lin_0.001", ["--learning-rate: here it is --algo.lr"]),
        ("head_on --separation-nm 5", ["here it is --env.separation-nm 5"]),
        ("network_defense --workflow balanced", ["here it is --env.workflow balanced"]),
        ("cartpole --neighbor-topk 3", ["cartpole has none: `regimen envs cartpole` lists"]),
        ("cartpole --max-episode-steps 9", ["here it is --env.max-episode-steps 9"]),
        ("cartpole --stop 3", ["it is a section with the settings --stop.above"]),
        ("cartpole --verbose", ["here it is `quiet=False`"]),  # not Ray's
        ("cartpole --track", ["--track needs a value; here it is `--track wandb`"]),
        ("pendulum --algo SAC --ent-coef 0.1", ["here it is --algo.alpha (the start"]),
        ("head_on --preset atc_sac --clip-range 0.1", ["sac has none, only ppo, appo (algo.clip_eps)"]),
        ("cartpole --device cuda:0", ["here it is gpu"]),
        ("cartpole --algo DQN", ["unknown algorithm 'DQN'; here it is sac"]),
        ("cage2", ["here it is network_defense"]),
        ("CARTPOLE-V1", ["did you mean 'gym:CartPole-v1'?"]),
        ("Acrobot-v7", ["did you mean 'gym:Acrobot-v1'?"]),
        ("--scenario all", ["here it is `regimen train NAME/all`"]),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_flags_are_answered_together_and_for_this_algorithm_and_environment(argv, answers):
    with pytest.raises(RegimenError) as error:
        read(argv.split())
    for words in answers:
        assert words in str(error.value)


def test_keys_sections_and_choices_in_any_case(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("ENV: CartPole\nAlgo: PPO\nRollout: {Steps: 512}\nDevice: CPU\nnetwork: {Activation: ReLU}\n")
    config = layers.build_config(config_file=file)
    assert (config.env, config.rollout.steps, config.device, config.network.activation) == (
        "cartpole",
        512,
        "cpu",
        "relu",
    )


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("env: cartpole\nx: {num_workers: 2}", ["words of this one: {engine: {workers: 2, name: ray}}"]),
        ("scenario: head_on\nalgo: PPO", ["here it is env: airspace/head_on"]),
        (
            "environment: head_on\ntimesteps: 1000",
            ["all of it in the words of this one: {env: airspace/head_on, total_steps: 1000}"],
        ),
        (
            "env: {name: head_on, neighbor_topk: 3}",
            ["write env: airspace/head_on and env_args: {neighbors: 3}"],
        ),
        (
            "env: head_on\nenv_config: {neighbor_topk: 3, reward: compat}",
            ["here it is env_args: {neighbors: 3, reward: compat}"],
        ),
        (
            "env: cartpole\nalgorithm: {gamma: 0.9}",
            ["'algorithm'; all of it in the words of this one: {algo: {gamma: 0.9}}"],
        ),
        (
            "env: cartpole\neval: {frequency: 50}\ncheckpoint: {interval: 5}\nlog: {interval: 5}",
            ["eval.frequency: here it is eval.every: 50 episodes", "log.interval: here it is log.every (`4 updates`"],
        ),
        (
            "x-ppo:\n  env: CartPole-v1\n  run: PPO\n  stop: {training_iteration: 5}\n"
            "  config: {lr: 0.1, model: {fcnet_activation: linear}}",
            [
                "'x_ppo', whose keys are: env: here it is env: gym:CartPole-v1",
                "run: here it is algorithm: PPO",
                "stop.training_iteration: here it is total_steps (updates",
                "config.lr: here it is algo.lr: 0.1",
                "config.model.fcnet_activation: here it is network.activation",
            ],
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_files_of_other_trainers(text, answers, tmp_path):
    (file := tmp_path / "my.yaml").write_text(text)
    with pytest.raises(RegimenError) as error:
        layers.build_config(config_file=file)
    for words in answers:
        assert words in str(error.value)
    assert "activation: linear" not in str(error.value), "this could not be read"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: regimen.PPO("CartPole-v1"), "Trainer('gym:CartPole-v1', algo=regimen.PPO()"),
        (
            lambda: regimen.PPO(policy="MlpPolicy", env="CartPole-v1", n_epochs=3),
            "'gym:CartPole-v1', algo=regimen.PPO(epochs=3)",
        ),
        (lambda: regimen.PPO({"env": "head_on", "lr": 0.1}), "Trainer('airspace/head_on', algo=regimen.PPO(lr=0.1)"),
        (lambda: regimen.PPO.load("x"), "here it is `regimen.load_policy(run_dir)`"),
        (lambda: regimen.PPO().load("x"), "here it is `regimen.load_policy(run_dir)`"),
        (lambda: regimen.EvalCallback, "of `regimen.train`"),
        (lambda: regimen.Phase2Config, 'algo="empowerment"'),
        (lambda: regimen.Trainer("cartpole").restore("x"), "here it is `trainer.load(path)`"),
    ],
)
def test_objects_of_other_trainers(make, words):
    with pytest.raises((RegimenError, AttributeError)) as error:
        make()
    assert words in str(error.value)


def test_every_answer_about_python_verbs_and_names_leads_somewhere():
    """Verbs, flags, algorithms and environments that are named exist, and so do the names of the package."""
    table = names.load_answers()
    for owner, rows in table.items():
        for name, answer in rows.items():
            for verb in re.findall(r"`regimen ([\w-]+)", answer):
                assert verb in VERBS, (owner, name)
            for function in re.findall(r"`regimen\.(\w+)", answer):
                assert hasattr(regimen, function), (owner, name)
            if owner == "algorithm":
                assert re.match(r"\w+", answer)[0] in ALGORITHMS, name
            if owner == "environment" and name != "all":
                assert answer in ENVIRONMENTS, name
            if owner.startswith("regimen ") or owner in ("verb", "algorithm", "environment"):
                continue
            cls = getattr(regimen, owner, None) or getattr(trajectory_rows, owner, None) or regimen
            assert cls is regimen or not hasattr(cls, name), f"{owner}.{name} exists"
    assert not set(table["verb"]) & set(VERBS) and not set(table["algorithm"]) & set(ALGORITHMS)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("test-shifts RUN", "here it is `regimen analyse RUN --shifts all`"),
        ("analyze", "here it is `regimen analyse RUN`"),
        ("enjoy", "here it is `regimen replay RUN`"),
        ("evaluate --run-id 3 --render", "--run-id: here it is `regimen evaluate RUN`"),
        ("resume x --steps 10", "here it is `--total-steps`, counted from the beginning"),
        ("analyse --results-dir x", "here it is `regimen analyse RUN`"),
    ],
)
def test_verbs_of_other_trainers(argv, words, capsys):
    assert main(argv.split()) == 2
    assert words in capsys.readouterr().err


def test_names_in_any_case():
    for env, algo in (("head_on", "PPO"), ("Head-On", "ppo"), ("CartPole", "Impala"), ("PENDULUM", "SAC")):
        config, _ = read([env, "--algo", algo])
        assert config.algorithm == algo.lower()
        assert config.env in ("airspace/head_on", "cartpole", "pendulum")
        assert regimen.Trainer(env, algo).config.env == config.env
    with pytest.raises(RegimenError, match="unknown algorithm 'DQN'"):
        read(["cartpole", "--algo", "DQN"])


def test_a_section_of_another_trainer_is_written_in_our_words(tmp_path):
    """What is told to write is what the section means: with it the file trains."""
    file = tmp_path / "my.yaml"
    section = {"rollout_batch_size": 10, "update_epochs": 4, "minibatch_size": 64, "learning_rate": 0.001, "gamma": 0.9}
    for title in ("trainer", "ppo", "training"):
        file.write_text(yaml.safe_dump({title: section}))
        with pytest.raises(RegimenError, match=f"unknown setting '{title}'; all of it in the words") as error:
            layers.build_config("cartpole", config_file=file)
        file.write_text(str(error.value).partition("words of this one: ")[2])
        config = layers.build_config("cartpole", config_file=file)
        assert (config.rollout.episodes, config.algo.epochs, config.algo.minibatch_size) == (10, 4, 64)
        assert (config.algo.lr, config.algo.gamma) == (0.001, 0.9)


def test_a_section_that_means_something_else_is_answered_key_by_key():
    section = {"n_steps": 128, "clip": {"clip_range": 0.1}, "lambda_": 0.9, "xyzzy": 1, "name": "a"}
    with pytest.raises(RegimenError) as error:
        layers.build_config("cartpole", overrides={"ppo": section})
    for words in (
        "n_steps: here it is rollout.steps (ours counts",
        "clip.clip_range: here it is algo.clip_eps: 0.1",
        "lambda_: here it is algo.gae_lambda: 0.9",
        "xyzzy: `regimen train --help-all` lists them",
        "'name' is ambiguous",
    ):
        assert words in str(error.value)
    assert "all of it" not in str(error.value)


def test_several_sections_are_one_answer(tmp_path):
    """Two sections of another trainer are told as one file of ours; a value that means something else is not."""
    file = tmp_path / "my.yaml"
    theirs = {"ppo": {"clip_epsilon": 0.1, "optimizer": {"learning_rate": 0.001}}, "training": {"max_episodes": 7}}
    file.write_text(yaml.safe_dump(theirs))
    with pytest.raises(RegimenError, match="unknown settings 'ppo', 'training'; all of it") as error:
        layers.build_config("cartpole", config_file=file)
    file.write_text(str(error.value).partition("words of this one: ")[2])
    config = layers.build_config("cartpole", config_file=file)
    assert (config.algo.clip_eps, config.algo.lr, config.total_episodes) == (0.1, 0.001, 7)
    with pytest.raises(RegimenError, match=r"value_coef: here it is algo.vf_coef .of half") as error:
        layers.build_config("cartpole", overrides={"ppo": {"value_coef": 0.5, "clip_epsilon": 0.1}})
    assert "all of it" not in str(error.value)


def test_the_documents_trainer_in_python():
    """All arguments of the document's trainer and agent at once, and its import."""
    with pytest.raises(RegimenError, match="unknown settings 'agent', 'max_episodes', 'target_reward'") as error:
        regimen.Trainer(env="cartpole", agent=regimen.PPO(), max_episodes=9, target_reward=195, enable_mlflow=False)
    for words in ("agent: here it is algo (in Python an object", "total_episodes: 9", "stop.target_return: 195"):
        assert words in str(error.value)
    assert "track.enabled: false" in str(error.value) and "object at" not in str(error.value)
    with pytest.raises(RegimenError, match=r"'K_epochs'; here it is epochs=4, 'state_dim'; here it is nothing to set"):
        regimen.PPO(K_epochs=4, state_dim=4)
    with pytest.raises(RegimenError, match=r"'clip_range'; sac has none"):
        regimen.SAC(clip_range=0.1)
    with pytest.raises(
        ImportError, match=r"cannot import name 'PPOTrainer' from 'regimen'; here it is `regimen.Trainer"
    ):
        exec("from regimen import PPOTrainer")
    assert not hasattr(regimen, "PPOTrainer")


MENTION = re.compile(r"algo\.[a-z_.]*[a-z_]")


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_no_answer_speaks_of_a_setting_that_the_algorithm_has_not(algo):
    """Not in its notes either. Asked of every name of others, and of every setting that another algorithm has."""
    asked = {*names.names(), *(leaf for leaves in LEAVES.values() for leaf in leaves)} - LEAVES[algo]
    asked |= {leaf[:-1] for leaf in LEAVES[algo]}  # misspelt
    for key in asked:
        end = lookup.suggest(key, algo)
        if f"{algo} has none" not in end:
            said = set(MENTION.findall(end.replace("-", "_"))) - {key}
            assert said <= LEAVES[algo], (key, end)


def test_what_is_counted_is_always_said():
    """A bare number of another trainer becomes an interval of ours only where both count updates."""
    for other, name in names.names().items():
        for setting in {"eval.every", "checkpoint.every", "log.every"} & set(name.ours):
            text = name.value(setting, 50)
            assert text is None or not text.isdigit() or name.ours[setting] == "updates", other


def test_names_are_listed_once_in_each_file():
    files = [Path(names.__file__).with_suffix(".yaml"), *(Path(d.names) for d in domains().values() if d.names)]
    assert len(files) > 1
    for file in files:
        listed = re.findall(r"^(\w+):", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(set(listed)) == len(listed) and set(listed) <= set(
            names.names()
        )  # YAML takes the last of equal keys


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("clip_range", "algo.clip_eps"),
        ("clip_epsilon", "algo.clip_eps"),
        ("rollout_batch_size", "rollout.episodes"),
        ("epochs_per_update", "algo.epochs"),
        ("train_batch_size", "rollout.steps"),
        ("num_sgd_iter", "algo.epochs"),
        ("timesteps_total", "total_steps"),
        ("total_timesteps", "total_steps"),
        ("batch_size", "algo.minibatch_size"),
    ],
)
def test_flags_yaml_and_python(theirs, ours, tmp_path):
    with pytest.raises(RegimenError) as error:
        read(["cartpole", f"--{theirs.replace('_', '-')}", "3"])
    assert f"here it is {'--' if theirs != 'batch_size' else ''}" in str(error.value)
    assert ours.replace("_", "-") in str(error.value).replace("_", "-")
    file = tmp_path / "my.yaml"
    for content in ({theirs: 3}, {"algo": {theirs: 3}}):
        file.write_text(yaml.safe_dump({"env": "cartpole"} | content))
        with pytest.raises(RegimenError, match=rf"unknown setting '(algo\.)?{theirs}'; here it is {ours}"):
            layers.build_config(config_file=file)
    with pytest.raises(RegimenError, match=f"here it is {ours}"):
        regimen.train("cartpole", **{theirs: 3})


def test_the_constructor_of_another_trainer_is_written_in_our_words():
    with pytest.raises(ConfigError) as error:
        regimen.PPO("MlpPolicy", "CartPole-v1", learning_rate=1e-3, n_steps=64, n_epochs=4)
    line = "regimen.Trainer('gym:CartPole-v1', algo=regimen.PPO(lr=0.001, epochs=4), total_steps=100_000).train()"
    assert line in str(error.value) and "here it is rollout.steps" in str(error.value)
    with pytest.raises(ConfigError, match=r"unknown argument 'learning_rate'; here it is lr=0\.0003"):
        regimen.PPO(learning_rate=3e-4)
    with pytest.raises(ConfigError, match=r"did you mean 'gamma'"):
        regimen.PPO(gama=0.9)


def test_the_algorithm_decides():
    assert layers.build_config("pendulum", algo="sac", overrides={"batch_size": 64}).algo.batch_size == 64
    with pytest.raises(RegimenError, match=r"here it is algo\.critic_lr"):
        layers.build_config("pendulum", algo="sac", overrides={"q_lr": 1e-3})


def test_a_note_says_what_is_counted_differently():
    with pytest.raises(RegimenError, match=r"rollout\.steps .*over all environments"):
        layers.build_config("cartpole", overrides={"n_steps": 128})


def test_other_unknown_names_still_get_the_nearest():
    with pytest.raises(RegimenError, match=r"did you mean 'algo\.clip_eps'"):
        layers.build_config("cartpole", overrides={"algo.clip_epss": 0.1})


def test_the_pages_have_the_tables_of_the_code():
    pages = [DOCS / "migrating.md", *sorted((DOCS / "coming_from").glob("*.md"))]
    texts = [page.read_text() for page in pages]
    write = "run `python -m regimen.config.names docs/migrating.md docs/coming_from/*.md`"
    assert [names.page(text) for text in texts] == texts, write
    assert [other for other in names.names() if f"`{other}`" not in "".join(texts)] == []


SECTION = "trainer:\n  rollout_batch_size: 10\n  update_epochs: 4\n  minibatch_size: 64\n"


def test_the_documents_own_file_is_answered_as_its_page_says(tmp_path):
    page = (DOCS / "coming_from" / "batch_training.md").read_text()
    (file := tmp_path / "my.yaml").write_text(SECTION)
    assert SECTION in page
    with pytest.raises(RegimenError) as error:
        layers.build_config("durotaxis", config_file=file)
    told = yaml.safe_load(str(error.value).partition("words of this one: ")[2])
    assert told == yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
