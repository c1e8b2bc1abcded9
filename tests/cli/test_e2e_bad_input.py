"""Bad input through the command line: one clear line, the right exit code, no traceback, nothing lost."""

import json
import shutil

import pytest
import yaml

from kit import refused
from regimen.cli.main import main
from regimen.files.checkpoint import Checkpoints
from regimen.files.run_dir import write_config
from support import BROKEN, UPDATE, command_line, digest_of, reseal, status, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")


# name: (environment and flags, exit code, what the line says)
TRAIN = {
    "unknown env": (["cartpoel"], 3, "unknown environment 'cartpoel'; did you mean 'cartpole'"),
    "unknown gym env": (["gym:CartPol-v1"], 3, "no such Gymnasium environment; did you mean 'gym:CartPole-v1'"),
    "no such module": (["nomodule:make"], 4, "cannot import the environment module 'nomodule'"),
    "unknown env argument": (["cartpole", "--env.gravty", "3"], 3, "no such argument; did you mean 'gravity'"),
    "unknown algorithm": (["cartpole", "--algo", "pop"], 3, "unknown algorithm 'pop'; did you mean 'ppo'"),
    "unknown preset": (["cartpole", "--preset", "fats"], 3, "'fats'.*did you mean 'fast'"),
    "unknown flag": (["cartpole", "--algo.lrr", "1"], 2, "unknown flag '--algo.lrr'; did you mean '--algo.lr'"),
    "no such file": (["cartpole", "--config", "nowhere.yaml"], 3, "nowhere.yaml"),
    "wrong type": (["cartpole", "--algo.lr", "fast"], 3, "algo.lr: 'fast' is not a number"),
    "out of range": (["cartpole", "--algo.gamma", "1.5"], 3, "algo.gamma: 1.5 is out of range; it must be 0 to 1"),
    "not a count": (["cartpole", "--eval.every", "3 weeks"], 3, "eval.every: '3 weeks' is not a count"),
    "no schedule": (
        ["cartpole", "--rollout.episodes", "10", "--rollout.num-envs", "4"],
        3,
        "10 cannot be shared equally by rollout.num_envs 4; nearest valid: num_envs 2 or 5, or episodes 8 or 12",
    ),
    "no gpu": (["cartpole", "--device", "gpu"], 3, "no GPU is visible"),
    "unknown network": (["cartpole", "--network.name", "cnn"], 3, "unknown network 'cnn'"),
    "batch too large": (
        ["cartpole", "--rollout.num-envs", "1e9", "--rollout.steps", "1e12"],
        7,
        r"needs about [\d,.]+ GB and .* are free; reduce rollout.num_envs, rollout.steps",
    ),
    "too many episodes": (["pendulum", "--rollout.episodes", "1e9"], 7, "reduce rollout.num_envs"),
    "host batch too large": (["gym:CartPole-v1", "--rollout.episodes", "1e9"], 7, "reduce rollout.num_envs"),
    "too many seeds": (["cartpole", "--rollout.steps", "8e6", "--seeds", "9999"], 7, "reduce rollout.num_envs"),
    "init from nothing": (["cartpole", "--init-from", "nowhere"], 6, "nowhere is not a run directory: no such dir"),
    "diverges": (
        ["cartpole", *command_line(**{"algo.lr": "1e30", "algo.max_grad_norm": 0, "total_steps": 640})],
        5,
        r"training diverged at update \d+ .*the last good state is saved in .*Try a lower algo.lr",
    ),
    "native NaN": (
        [f"{BROKEN}:Luck", "--env.threshold", "0.99", *command_line(total_steps=640)],
        5,
        r"training diverged at update \d+ \(step \d+\): loss nan",
    ),
    "native shape": ([f"{BROKEN}:WrongShape", *command_line(total_steps=640)], 4, "the observation of step differs"),
    "host raises": (
        [f"{BROKEN}:host", "--env.fault", "raises", *command_line(total_steps=640)],
        4,
        "step failed: RuntimeError: the simulator crashed",
    ),
    "host NaN": (
        [f"{BROKEN}:host", "--env.fault", "nan_obs", *command_line(total_steps=640)],
        4,
        "step returned a non-finite observation",
    ),
    "host shape": (
        [f"{BROKEN}:host", "--env.fault", "shape", *command_line(total_steps=640)],
        4,
        r"an observation of shape \(3,\); its observation_space says \(2,\)",
    ),
    "host reward": (
        [f"{BROKEN}:host", "--env.fault", "nan_reward", *command_line(total_steps=640)],
        4,
        "each must be one finite number",
    ),
}
TRAINED = ("diverges", "native NaN", "host raises", "host NaN", "host shape", "host reward")


@pytest.mark.parametrize("case", TRAIN)
def test_train(case, capsys, tmp_path):
    argv, code, message = TRAIN[case]
    refused(capsys, ["train", *argv, "--out", tmp_path / "run", "--quiet"], code, message)
    if case == "native shape":  # only compiling finds it
        assert status(tmp_path / "run")["state"] == "failed"
        return
    if case not in TRAINED:
        assert not (tmp_path / "run").exists(), "what is refused leaves nothing behind: the same --out can be used"
        return
    said = status(tmp_path / "run")
    assert said["state"] == ("diverged" if code == 5 else "failed")
    steps = Checkpoints(tmp_path / "run" / "checkpoints").steps()
    assert steps, "the last good state is saved"
    assert (tmp_path / "run" / "policy" / "config.json").exists()


def test_out_that_exists_or_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    for out, message in (
        (full, "already exists and is not empty; choose another --out"),
        (tmp_path / "file", "--out"),
        (tmp_path / "file" / "below", "--out"),
        ("/proc/nowhere/run", "--out: cannot write to /proc/nowhere/run"),
    ):
        for more in ([], ["--seeds", "2"]):
            refused(capsys, ["train", "cartpole", *command_line(), "--out", out, *more], 6, message)
    assert (full / "thesis.tex").read_text() == (tmp_path / "file").read_text() == "mine" and len(
        list(full.iterdir())
    ) == 1


# --- runs that cannot be continued -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("bad") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regimen.runs.delivery.try_plot_run", lambda path: ([], None))
        tiny(out, updates=3, **{"checkpoint.every": "1"})
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def edit(run, **changes):
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (config[section] if section else config)[name] = value
    write_config(run, config)


def edit_identity(run, **changes):
    for path in (run / "checkpoints").glob("*/meta.json"):
        meta = json.loads(path.read_text())
        reseal(path, identity=meta["identity"] | changes)


def truncate(folder):
    file = folder / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


LAST = str(3 * UPDATE)
RESUME = {
    "no config": (lambda run: (run / "config.yaml").unlink(), [], 6, "not a run directory: it has no config.yaml"),
    "broken config": (lambda run: (run / "config.yaml").write_text("a: [1"), [], 6, "config.yaml is not valid YAML"),
    "config of nothing": (lambda run: (run / "config.yaml").write_text("12"), [], 6, "does not hold a configuration"),
    "unknown setting": (
        lambda run: edit(run, algo__lrr=1),
        [],
        3,
        "unknown setting 'algo.lrr'; did you mean 'algo.lr'",
    ),
    "setting out of range": (lambda run: edit(run, algo__gamma=2), [], 3, "algo.gamma: 2.* is out of range"),
    "another network": (
        lambda run: edit(run, network__hidden=[9, 9]),
        [],
        6,
        r"its network is mlp \[8\] tanh, this run's is mlp \[9, 9\] tanh",
    ),
    "another env": (
        lambda run: edit(run, env="acrobot"),
        [],
        6,
        r"its observation space is Box\(\[4\], float32\), this run's is Box\(\[6\], float32\)",
    ),
    "another num_envs": (lambda run: edit(run, rollout__num_envs=2), [], 6, "its num_envs is 4, this run's is 2"),
    "another normaliser": (lambda run: edit(run, algo__normalize_obs=True), [], 6, "it lacks 'state/norm/obs/count'"),
    "another algorithm": (
        lambda run: edit_identity(run, algorithm="sac"),
        [],
        6,
        "its algorithm is sac, this run's is ppo",
    ),
    "damaged checkpoint by name": (
        lambda run: truncate(run / "checkpoints" / LAST),
        ["--checkpoint", LAST],
        6,
        rf"the checkpoint .*/{LAST} is damaged",
    ),
    "no such checkpoint": (lambda run: None, ["--checkpoint", "33"], 6, "no checkpoint at step 33; nearest: 32"),
    "not a checkpoint": (lambda run: None, ["--checkpoint", "newest"], 6, "none of best, final, latest or a step"),
    "budget spent": (lambda run: None, ["--total-steps", LAST], 3, "give a larger --total-steps"),
}


@pytest.mark.parametrize("case", RESUME)
def test_resume(case, capsys, run, tmp_path):
    hurt, flags, code, message = RESUME[case]
    hurt(run)
    before = {k: v for k, v in digest_of(run).items() if k != ".lock"}
    more = [] if "--total-steps" in flags else ["--total-steps", "10000"]
    for out in ([], ["--out", tmp_path / "copy"]):
        refused(capsys, ["resume", run, "--quiet", *flags, *more, *out], code, message)
    assert {k: v for k, v in digest_of(run).items() if k != ".lock"} == before
    assert not (tmp_path / "copy").exists()


def test_resume_of_what_is_not_a_run(capsys, tmp_path):
    refused(capsys, ["resume", tmp_path / "nowhere"], 6, "no such directory")
    (tmp_path / "file").write_text("")
    refused(capsys, ["resume", tmp_path / "file"], 6, "it is a file")
    (tmp_path / "group" / "seed-0").mkdir(parents=True)
    (tmp_path / "group" / "seed-0" / "config.yaml").write_text("")
    refused(capsys, ["resume", tmp_path / "group"], 6, "seed-0/config.yaml does not hold a configuration")
    refused(capsys, ["evaluate", tmp_path / "group"], 3, "holds several seeds; name one of them")


def test_a_damaged_latest_checkpoint_falls_back_with_a_warning(capsys, run):
    truncate(run / "checkpoints" / LAST)
    assert main(["resume", str(run), "--total-steps", str(4 * UPDATE)]) == 0
    out = capsys.readouterr().out
    assert f"/{LAST} is damaged" in out and f"using the checkpoint at step {2 * UPDATE} instead" in out
    assert status(run)["state"] == "finished" and json.loads((run / "summary.json").read_text())["updates"] == 4


def test_a_full_disk_loses_nothing(capsys, run):
    log = run / "log.txt"
    text = log.read_bytes()
    log.unlink()
    log.symlink_to("/dev/full")
    more = ["--total-steps", str(4 * UPDATE), "--quiet"]
    refused(
        capsys,
        ["resume", run, *more, "--trust"],
        6,
        r"cannot write .*log.txt: disk full .*then `regimen resume` the run",
    )
    log.unlink()
    log.write_bytes(text)
    assert main(["resume", str(run), *more]) == 0
    assert json.loads((run / "summary.json").read_text())["updates"] == 4


# --- evaluate --------------------------------------------------------------------------------------------------------

EVALUATE = {
    "an env without a policy": (["cartpole"], 3, "name a policy with --policy"),
    "unknown baseline": (["cartpole", "--policy", "randm"], 3, "did you mean 'random'"),
    "no such run": (["runs/nowhere"], 3, "unknown environment 'runs/nowhere'"),
    "no store": (["models:/x@champion", "--tracking-uri", "sqlite:////nowhere/m.db"], 3, "there is no MLflow store"),
    "unknown env argument": (["cartpole", "--policy", "random", "--env.gravty", "1"], 3, "did you mean 'gravity'"),
}


@pytest.mark.parametrize("case", EVALUATE)
def test_evaluate(case, capsys):
    argv, code, message = EVALUATE[case]
    refused(capsys, ["evaluate", *argv], code, message)


def test_evaluate_a_damaged_run(capsys, run):
    refused(capsys, ["evaluate", run, "--checkpoint", "12"], 6, "no checkpoint at step 12")
    (run / "policy" / "policy.safetensors").write_bytes(b"nothing")
    refused(capsys, ["evaluate", run], 6, "the policy in .* is damaged")
    shutil.rmtree(run / "policy")
    refused(capsys, ["evaluate", run], 6, "no policy in .*config.json is missing")


def test_evaluate_prints_complete_json(capsys, finished):
    argv = ["evaluate", str(finished), "--episodes", "3", "--json", "--env.max_episode_steps", "5"]
    assert main(argv) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["episodes"] == 3 and values["length_mean"] == 5.0
    assert {"env", "policy", "checkpoint", "seed", "return_mean", "return_std", "return_ci95"} <= values.keys()
    assert {"success_rate", "reward_components", "metrics"} <= values.keys()
    assert main(["evaluate", str(finished), "--episodes", "3", "--checkpoint", "final"]) == 0
    assert f"(final, step {LAST})" in capsys.readouterr().out
