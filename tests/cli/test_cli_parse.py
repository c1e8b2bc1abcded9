"""The command line: what flags become, one line and an exit code for bad input, help without heavy imports."""

import json
import subprocess
import sys
import types

import pytest
import yaml

from regimen.cli.main import VERBS, explain, main
from regimen.config.flags import parse_scalar
from regimen.config.schema import ALGORITHMS
from regimen.errors import StorageError

ANY = "any:environment"


class Result:
    exit_code = 0
    summary = {"env": "cartpole", "solved": True}  # noqa: RUF012
    run_dir = "runs/x"


class Evaluation:
    def to_dict(self):
        return {"return_mean": 1.0}

    def lines(self):
        return ["return 1.0"]


@pytest.fixture
def calls(monkeypatch):
    """What the verbs pass to the library, in place of the library."""
    seen = {}

    def record(name, result):
        def call(*args, **kwargs):
            seen[name] = (args, kwargs)
            if "raise" in seen:
                raise seen["raise"]
            return result

        return call

    api = types.ModuleType("regimen.runs.api")
    for name in ("train", "resume"):
        setattr(api, name, record(name, Result()))
    evaluating = types.ModuleType("regimen.policies.evaluate")
    evaluating.evaluate = record("evaluate", Evaluation())  # type: ignore[attr-defined]
    plots, report = types.ModuleType("regimen.reports.plots"), types.ModuleType("regimen.runs.delivery")
    plots.plot_run = record("plot_run", ["a.png", "b.png"])  # type: ignore[attr-defined]
    report.report_again = record("report_again", "report.html")  # type: ignore[attr-defined]
    check = types.ModuleType("regimen.envs.check")
    problem = types.SimpleNamespace(level="error", message="reward is NaN")
    check.check_env = lambda env, args: [problem] if args else []  # type: ignore[attr-defined]
    for module in (api, evaluating, plots, report, check):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


def trained(calls, *argv):
    assert main(["train", *argv]) == 0
    (config,), kwargs = calls["train"]
    return config, kwargs


# --- what flags become -----------------------------------------------------------------------------------------------


def test_train_flags(calls):
    argv = [
        *("cartpole", "--total-steps", "1e6", "--algo.lr=1e-3", "--network.hidden", "32", "16", "--seed", "7"),
        *("--eval.every", "5000 steps", "--stop.target_return", "475", "--out", "runs/a", "--no-track"),
        *("--algo.normalize-obs", "--log.no-episodes", "--env.length", "0.7", "--env.max-episode-steps=1e3"),
    ]
    config, kwargs = trained(calls, *argv)
    assert (config.env, config.seed, config.total_steps, config.out) == ("cartpole", 7, 1_000_000, "runs/a")
    assert (config.algo.lr, config.algo.normalize_obs, config.network.hidden) == (1e-3, True, (32, 16))
    assert (config.eval.every, config.stop.target_return, config.log.episodes) == ("5000 steps", 475.0, False)
    assert not config.track.enabled
    assert config.env_args == {"length": 0.7, "max_episode_steps": 1000}
    assert (
        kwargs["command"].startswith("regimen train cartpole --total-steps 1e6") and "'5000 steps'" in kwargs["command"]
    )


@pytest.mark.parametrize(
    ("argv", "read", "expected"),
    [
        (
            ["--rollout.episodes", "10"],
            lambda c: (c.rollout.steps, c.rollout.episodes, c.rollout.num_envs),
            (None, 10, None),
        ),
        (["--total-episodes", "50"], lambda c: (c.total_steps, c.total_episodes), (None, 50)),
        (["--lr", "3e-4", "--num_envs", "4"], lambda c: (c.algo.lr, c.rollout.num_envs), (3e-4, 4)),
        (["--preset", "fast"], lambda c: (c.preset, c.rollout.episodes), ("fast", 5)),
        (["--algo", "ppo", "--algo.epochs", "3"], lambda c: (c.algorithm, c.algo.epochs), ("ppo", 3)),
        (
            ["--tracking-uri", "sqlite:///x", "--experiment", "e"],
            lambda c: (c.track.uri, c.track.experiment),
            ("sqlite:///x", "e"),
        ),
        (["--algo.normalize-advantage", "false"], lambda c: c.algo.normalize_advantage, False),
        (["--algo.no-normalize-advantage"], lambda c: c.algo.normalize_advantage, False),
        (["--stop.no-improvement", "5"], lambda c: c.stop.no_improvement, 5),
        (["--algo.log-std-init", "-0.5"], lambda c: c.algo.log_std_init, -0.5),
        (["--network.hidden", "128,64"], lambda c: c.network.hidden, (128, 64)),
        (["--stop.metric", "none"], lambda c: (c.stop.metric, c.stop.above), (None, None)),
        (["--seeds", "4", "--device", "cpu"], lambda c: (c.seeds, c.device), (4, "cpu")),
        (["--init-from", "runs/a"], lambda c: c.init_from, "runs/a"),
        (["--algo.lr", "1", "--algo.lr", "2"], lambda c: c.algo.lr, 2.0),
    ],
)
def test_train_flag_forms(calls, argv, read, expected):
    config, _ = trained(calls, "cartpole", *argv)
    assert read(config) == expected
    config, _ = trained(calls, *argv, "cartpole")  # the place of ENV does not matter
    assert read(config) == expected


def test_config_file_and_flags(calls, tmp_path):
    (tmp_path / "c.yaml").write_text("env: pendulum\nseed: 4\ntotal_steps: 1e4\n")
    config, _ = trained(calls, "--config", str(tmp_path / "c.yaml"), "--seed", "5")
    assert (config.env, config.seed, config.total_steps) == ("pendulum", 5, 10_000)


def test_json_and_quiet(calls, capsys):
    _, kwargs = trained(calls, "cartpole", "--json", "--quiet")
    out, _ = capsys.readouterr()
    assert json.loads(out) == Result.summary
    assert kwargs["console"].quiet
    trained(calls, "cartpole")
    assert capsys.readouterr().out == ""


def test_exit_code_of_the_run(calls, monkeypatch):
    monkeypatch.setattr(Result, "exit_code", 143)
    assert main(["train", "cartpole"]) == 143


def test_resume(calls, capsys):
    argv = ["resume", "runs/a", "--total-steps", "2e5", "--out", "runs/b", "--checkpoint", "best", "--env.length", "1"]
    assert main([*argv, "--json"]) == 0
    (run,), kwargs = calls["resume"]
    assert (str(run), kwargs["total_steps"], kwargs["total_episodes"]) == ("runs/a", 200_000, None)
    assert (kwargs["out"], kwargs["checkpoint"], kwargs["env_args"]) == ("runs/b", "best", {"length": 1})
    assert json.loads(capsys.readouterr().out) == Result.summary


def test_evaluate(calls, capsys):
    assert main(["evaluate", "models:/a@champion", "--episodes", "1e2", "--policy", "random", "--seed=3"]) == 0
    (target,), kwargs = calls["evaluate"]
    assert (target, kwargs["episodes"], kwargs["policy"], kwargs["seed"]) == ("models:/a@champion", 100, "random", 3)
    assert capsys.readouterr().out == "return 1.0\n"
    assert main(["evaluate", "runs/a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"return_mean": 1.0}


def test_small_verbs(calls, capsys):
    assert main(["plot", "runs/a"]) == 0
    assert main(["report", "runs/a"]) == 0
    assert capsys.readouterr().out == "a.png\nb.png\nreport.html\n"
    assert main(["check-env", "cartpole"]) == 0
    assert capsys.readouterr().out == "cartpole: ok\n"
    assert main(["check-env", "probe/image"]) == 0
    assert "image 10x10x1 -> one convolution of 16 filters" in capsys.readouterr().out.splitlines()[1]
    assert main(["check_env", "cartpole", "--env.length", "nan"]) == 4
    assert "error: reward is NaN" in capsys.readouterr().out


def test_lists(capsys):
    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    assert "fast" in out and "update every 5 episodes; 2 epochs of minibatches of 32; 100 episodes in all" in out
    for name in ("fast", "cartpole", "gym:CartPole-v1"):
        assert main(["presets", name]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["settings"]
    assert main(["algorithms"]) == 0
    assert main(["algorithms", "ppo"]) == 0
    out = capsys.readouterr().out
    assert "--algo.reward.norm-over" in out and "MISSING" not in out  # sections are opened
    assert "--algo.clip-eps" in out
    assert main(["envs"]) == 0
    assert "cartpole" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1_000_000),
        ("1_000", 1000),
        ("-3", -3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-3", 1e-3),
        ("1.5e3", 1500.0),
        ("true", True),
        ("False", False),
        ("none", None),
        ("human", "human"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("[1, 2e1, x]", [1, 20, "x"]),
        ("{a: 1e1}", {"a": 10}),
        ("[1", "[1"),
        ("", ""),
    ],
)
def test_parse_scalar(text, value):
    out = parse_scalar(text)
    assert out == value and type(out) is type(value)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ("trian cartpole", 2, ["unknown verb 'trian'", "'train'"]),
        ("--verbose", 2, ["unknown flag '--verbose'", "train"]),
        ("train", 2, ["needs an environment"]),
        ("train cartpole pendulum", 2, ["unexpected argument 'pendulum'"]),
        ("train cartpole --env pendulum", 2, ["named twice"]),
        ("train cartpole --total-steps", 2, ["--total-steps needs a value"]),
        ("train cartpole --total-steps --json", 2, ["--total-steps needs a value"]),
        ("train cartpole --env.length", 2, ["--env.length needs a value"]),
        ("train cartpole -n 3", 2, ["unknown flag '-n'"]),
        ("train cartpole --algo.lrr 3", 2, ["unknown flag '--algo.lrr'", "'--algo.lr'"]),
        ("train cartpole --total-step 3", 2, ["'--total-steps'"]),
        ("train cartpole --jsno", 2, ["'--json'"]),
        ("train cartpole --no-json=3", 2, ["takes no value"]),
        ("train cartpole --learning-rate 3", 2, ["unknown flag '--learning-rate'"]),
        ("train cartpol", 3, ["unknown environment 'cartpol'", "'cartpole'"]),
        ("train cartpole --algo pppo", 3, ["unknown algorithm 'pppo'", "'ppo'"]),
        ("train cartpole --preset fats", 3, ["unknown preset 'fats'", "'fast'"]),
        ("train cartpole --config nowhere.yaml", 3, ["nowhere.yaml", "cannot be read"]),
        ("train cartpole --algo.lr fast", 3, ["algo.lr: 'fast' is not a number"]),
        ("train cartpole --algo.lr -1", 3, ["algo.lr: -1 is out of range; it must be greater than 0"]),
        ("train cartpole --seeds 0", 3, ["seeds: 0"]),
        ("train cartpole --every 3", 3, ["ambiguous", "eval.every"]),
        ("train cartpole --json=maybe", 3, ["--json: 'maybe' is not true or false"]),
        ("train cartpole --rollout.episodes 10 --rollout.num-envs 4", 3, ["num_envs 2 or 5", "episodes 8 or 12"]),
        ("train cartpole --rollout.episodes 10 --rollout.steps 40", 3, ["both set"]),
        ("resume", 2, ["needs RUN"]),
        ("resume runs/a --total-step 3", 2, ["'--total-steps'"]),
        ("resume runs/a --total-steps 0", 3, ["--total-steps: 0 is out of range"]),
        ("resume runs/a --device tpu", 3, ["--device: 'tpu'"]),
        ("evaluate", 2, ["needs RUN|ENV"]),
        ("evaluate runs/a runs/b", 2, ["unexpected argument 'runs/b'"]),
        ("evaluate runs/a --episods 3", 2, ["'--episodes'"]),
        ("evaluate runs/a --episodes x", 3, ["--episodes: 'x' is not a whole number"]),
        ("evaluate runs/a --episodes 0", 3, ["--episodes: 0 is out of range; it must be at least 1"]),
        ("plot runs/a --env.x 3", 2, ["takes no --env.x"]),
        ("presets fats", 3, ["unknown preset 'fats'", "'fast'"]),
        ("algorithms pppo", 3, ["unknown algorithm 'pppo'", "'ppo'"]),
        ("envs cartpol", 3, ["unknown environment 'cartpol'", "'cartpole'"]),
    ],
)
def test_bad_input(calls, capsys, argv, code, words):
    assert main(argv.split()) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("regimen: error: ") and err.count("\n") == 1
    assert all(word in err for word in words), err
    assert not calls


def test_flag_of_another_algorithm(calls, capsys):
    from dataclasses import make_dataclass

    from regimen.config.schema import ALGORITHMS, register_algorithm

    register_algorithm("other", "a:B", make_dataclass("Other", [("kappa", float, 0.1)], frozen=True))
    try:
        assert main(["train", "cartpole", "--algo.kappa", "0.2"]) == 2
        assert "unknown flag '--algo.kappa'" in (err := capsys.readouterr().err) and "--algo other" in err
        config, _ = trained(calls, "cartpole", "--algo", "other", "--algo.kappa", "0.2")
        assert config.algo.kappa == 0.2
    finally:
        del ALGORITHMS["other"]


class XlaRuntimeError(RuntimeError):
    """As jaxlib names it."""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (StorageError("disk full"), 6, ["disk full"]),
        (XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), 7, ["num_envs", "micro_batch_size"]),
        (MemoryError(), 7, ["minibatch_size"]),
        (XlaRuntimeError("INTERNAL: x"), 1, ["XlaRuntimeError: INTERNAL: x", "--debug"]),
        (ValueError("two\nlines"), 1, ["ValueError: two lines", "--debug"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
    ],
)
def test_errors_become_one_line(calls, capsys, error, code, words):
    calls["raise"] = error
    assert main(["train", "cartpole"]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and all(word in err for word in words), err
    if isinstance(error, Exception):
        assert explain(error)[1] == code
        assert main(["train", "--debug", "cartpole"]) == code
        assert "Traceback" in capsys.readouterr().err


# --- help ------------------------------------------------------------------------------------------------------------


def test_help_pages(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS) and "Examples:" in out
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        assert f"usage: regimen {verb}" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("regimen ")


def test_train_help_is_complete_and_merged(capsys, monkeypatch):
    from regimen.config.layers import leaf_types

    monkeypatch.setenv("COLUMNS", "110")  # one column
    assert main(["train", "cartpole", "--seed", "41", "--help-all"]) == 0
    out = capsys.readouterr().out
    for key in leaf_types("ppo"):
        if key not in ("env", "env_args", "algorithm"):
            assert "--" + key.replace("_", "-") in out, key
    for flag in (
        "--algo",
        "--config",
        "--json",
        "--quiet",
        "--no-track",
        "--tracking-uri",
        "--experiment",
        "--env.KEY",
    ):
        assert f"{flag} " in out
    text = " ".join(out.replace("│", " ").split())
    assert "Discount per step. (default: 0.98)" in text  # cartpole's tuned value
    assert "(default: 41)" in text
    assert "total-steps INT Budget in env steps. (default: 100000)" in text


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_train_help_fits_two_screens(capsys, monkeypatch, algo):
    """About 100 lines of 100 columns: what is most asked for, and where the rest is."""
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["train", "cartpole", "--algo", algo, "--help"]) == 0
    out = capsys.readouterr().out
    assert 40 < len(out.splitlines()) <= 105
    assert f"`regimen train cartpole --algo {algo} --help-all` explains every one" in out
    assert "--eval.every" in out and "How often to evaluate: " in out and "--stop.no-improvement" not in out


def test_light_commands_import_nothing_heavy():
    """The reason `--help` is quick: not one of the slow libraries is loaded."""
    commands = [["--help"], ["--version"], ["train", "cartpole", "--help"], ["evaluate", "--help"], ["presets"]]
    commands += [["envs"], ["algorithms"], ["train", "cartpol"]]
    code = (
        "import sys, json\nfrom regimen.cli.main import main\n"
        f"codes = [main(argv) for argv in {commands!r}]\n"
        "heavy = ['jax', 'jaxlib', 'flax', 'optax', 'mlflow', 'matplotlib', 'gymnasium', 'orbax', 'numpy', 'rich']\n"
        "print('LOADED', json.dumps([m for m in heavy if m in sys.modules]), codes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"LOADED [] {[0] * 7 + [3]}", done.stderr


def test_broken_pipe_is_quiet():
    script = (
        f"{sys.executable} -m regimen train cartpole --help | head -1; {sys.executable} -m regimen presets | head -1"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
