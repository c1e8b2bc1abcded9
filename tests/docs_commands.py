"""The commands of the documentation made small enough to run, and the things that they refer to."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

# What a test cannot run, and why. Every pattern must fit a command that is shown.
REASONS = {
    r"make (?!docs)": "sets up an environment of its own; .ci/run does it",
    r"make docs": "tests/test_docs_site.py builds the site",
    r"source |pip ": "changes the environment that the tests run in",
    r".*--address auto": "needs a running Ray cluster",
    r".*envpool:": "needs EnvPool, 750 MB; tests/envs/test_envpool.py plays its tasks where it is installed",
    r".*--device gpu|.*benchmarks/(gpu|kernels)\.py": "needs a GPU",
    r".*--peer-python": "needs an interpreter with Stable-Baselines3",
    r".*-m pytest": "runs other tests",
    r"git worktree|.*benchmarks/before_after\.py": "needs another checkout beside this one",
    r".*benchmarks/cage_real\.py": "needs a checkout of CybORG, and an interpreter that can import it",
    r".*benchmarks/original_platform\.py": "needs the original game, which is no dependency of this project",
    r"python docs/images/": "draws the pictures that the repository keeps; a person looks at them",
    r".*airspace/all --algo all": "over 70 trainings; airspace/all and --algo all are run each on their own",
    r"python benchmarks/offline\.py": "trains SAC to the end before it begins; a quarter of an hour",
    r"python benchmarks/surprises\.py slow-critics": "needs the sets of the last one",
}
SMALL: dict[str, dict[str, str | None]] = {  # script -> flags that make it short
    "ablation.py": {"--seeds": "1", "--total-steps": "500", "--episodes": "2"},
    "airspace.py": {"--seeds": "1", "--total-steps": "500", "--episodes": "2"},
    "airspace_documents.py": {"--quick": None, "--seconds": "90"},
    "fifty_episodes.py": {"--quick": None},
    "ppo_defaults.py": {"--quick": None},
    "dashboard.py": {"--clients": "2", "--rows": "2000", "--seconds": "1", "--training": "1", "--steps": "2000"},
    "empowerment_bystanders.py": {"--worlds": "world/unequal"},
    "empowerment_learned.py": {"--seeds": "1", "--worlds": "world/tiny3"},
    "empowerment_speed.py": {"--steps": "1536", "--rounds": "1"},
    "lag.py": {"--seeds": "1", "--steps": "500", "--lags": "1"},
    "host_processes.py": {"--rounds": "1", "--seconds": "0.2"},
    "known_races.py": {"--seeds": "2", "--lucks": "1", "--budget": "2500"},
    "learning.py": {"--seeds": "1", "--total-steps": "500"},
    "network_defense.py": {"--seeds": "1", "--total-steps": "500", "--episodes": "2"},
    "network_defense_calibration.py": {"--episodes": "2"},
    "permutations.py": {"--seeds": "2", "--budget": "22", "--problems": "nug12"},
    "population.py": {"--seeds": "2", "--members": "2", "--tasks": "pendulum"},
    "ray_scaling.py": {"--rounds": "1", "--seconds": "1"},
    "startup.py": {"--repeats": "1"},
    "surprises.py": {"--rounds": "1", "--seeds": "1", "--steps": "800"},
    "shared_search.py": {
        **{"--orders": "classes", "--starts": "2", "--references": "2", "--start": "25", "--unit": "25"},
        **{"--reference-episodes": "25", "--truth-episodes": "4", "--budget": "500", "--warm-up": "25"},
        **{"--check-every": "25", "--seeds": "2", "--check-episodes": "2", "--eval-episodes": "45", "--gate": "0.01"},
    },
    "workflow_search.py": {
        **{"--episodes": "100", "--truth-episodes": "8", "--eval-episodes": "4", "--budget": "120", "--seeds": "1"},
        **{"--unit": "25", "--orders": "classes"},
    },
    "atari.py": {"--total-steps": "1024", "--max-episode-steps": "100"},
    "continuous_world.py": {"--steps": "2048"},
    "own_loop.py": {"--updates": "1", "--episodes": "2"},
}


def reason_not_to_run(command: str) -> str | None:
    return next((why for pattern, why in REASONS.items() if re.match(pattern, command)), None)


def put(argv: list[str], **flags: str | None) -> list[str]:
    """With `flag value` in the place of what is there, or at the end; `total_steps` is --total-steps, `a__b` --a.b."""
    for name, value in flags.items():
        argv = put_flag(argv, "--" + name.replace("__", ".").replace("_", "-"), value)
    return argv


def put_flag(argv: list[str], flag: str, value: str | None) -> list[str]:
    new = [flag] if value is None else [flag, value]
    if flag not in argv:
        return argv + new
    at = argv.index(flag)
    return argv[:at] + new + argv[at + len(new) :]


def less(argv: list[str], **flags: str) -> list[str]:
    """The same, only where the flag is given."""
    given = {name: v for name, v in flags.items() if "--" + name.replace("__", ".").replace("_", "-") in argv}
    return put(argv, **given)


def small_train(argv: list[str]) -> list[str]:
    algo = argv[argv.index("--algo") + 1] if "--algo" in argv else ""
    argv = less(put(argv, eval__episodes="2"), seeds="2", workers="2", engine__workers="2")
    if "--total-episodes" in argv:
        argv = put(argv, total_episodes="4")
    elif "--algo.online-steps" in argv:
        argv = put(argv, total_steps="300", algo__online_steps="100", rollout__steps="100")
    elif algo in ("cql", "bc") or "DATASET" in argv:
        argv = less(put(argv, total_steps="200"), algo__bc_steps="50")
        argv = argv if "--preset" in argv else put(argv, rollout__steps="100")
    elif algo == "all":
        argv = put(argv, total_steps="600", algo__behaviour_steps="300")
    else:
        argv = put(argv, total_steps="200")
    if algo in ("cql", "bc") and "DATASET" not in argv and "--data" not in argv:
        argv = put(argv, algo__behaviour_steps="300")
    if not {"--experiment", "--tracking-uri", "--no-track"} & set(argv):
        argv = put(argv, no_track=None)
    return argv


def small(command: str) -> list[str]:
    """The words of a command, with placeholders filled in and budgets cut."""
    argv = shlex.split(command)
    if argv[0] == "mlflow":
        return argv
    if argv[0] == "python":
        script = next((Path(word).name for word in argv if word.endswith(".py")), "")
        if "--variants" in argv:
            argv = argv[: argv.index("--variants") + 2]  # one of them
        for flag, value in SMALL.get(script, {}).items():
            if not (flag == "--episodes" and "--init-from" in argv):  # a run that is given is not trained first
                argv = put_flag(argv, flag, value)
        if "--max-episodes" in argv:
            argv = put_flag(argv, "--max-episodes", "50")
        return ["cartpole" if word == "ENV" else word for word in argv]
    if len(argv) < 2 or argv[1].startswith("--") or "--help" in argv:
        return argv
    verb = argv[1]
    argv = ["cartpole" if word == "ENV" else word for word in argv]
    if verb == "train":
        if "--curriculum" in argv:
            argv = [{"cartpole": "durotaxis", "NAME": "distance"}.get(word, word) for word in argv]
        if "empowerment" in argv:
            argv = ["examples/continuous_world.py:make" if w == "mypackage.envs:make_env" else w for w in argv]
        return small_train(argv)
    if verb == "resume":
        return less(argv, total_steps="900")
    if verb == "evaluate" or (verb == "analyse" and "none" not in argv):
        return put(argv, episodes="2")
    if verb == "analyse":
        return less(argv, episodes="2")
    if verb == "collect":
        return less(argv, steps="50") if "--steps" in argv else put(argv, episodes="3")
    if verb == "sweep" and "--method" in argv and "tpe" not in argv:  # eight updates, which rounds and rungs share out
        small = {"total_steps": "256", "rollout__steps": "32", "rollout__num_envs": "4", "eval__episodes": "2"}
        return less(put(argv, **small, algo__minibatch_size="16", trials="3"), every="2")
    if verb == "sweep" and not argv[2].startswith("--"):
        return less(put(argv, total_steps="256", eval__episodes="2"), trials="3", seeds="2")
    if verb == "study":
        return less(put(argv, quick=None), seeds="2", budget="2000", repeats="4")
    if verb == "search" and "--classes" not in argv:
        return put(argv, budget="400") if argv[2].startswith("examples/") else put(argv, preset="quick", budget="200")
    return argv


def halves(argv: list[str], port: int) -> list[list[str]]:
    """A command of one of two processes, and its other half, on a port that is free."""
    argv = put(argv, distributed=f"127.0.0.1:{port}")
    other = "1" if argv[argv.index("--process-id") + 1] == "0" else "0"
    return [argv, put(argv, process_id=other)]


class Kitchen:
    """Makes what commands refer to, each once, by tiny real runs, and lays a command's folder with what it needs."""

    def __init__(self, folder: Path):
        self.folder = folder

    def environ(self, argv: list[str] | None = None) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "REGIMEN"))}
        env |= {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "BROWSER": "true", "JAX_PLATFORMS": "cpu"}
        env |= {"MINARI_DATASETS_PATH": "minari", "COLUMNS": "120"}
        if argv and "--devices" in argv:
            env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        return env

    def run(self, *argv: str, cwd: Path) -> None:
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=cwd,
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stdout}\n{done.stderr}"

    def train(self, out: str, *argv: str) -> None:
        flags = ["--eval.episodes", "2", "--no-track", "--quiet", "--out", out]
        self.run("-m", "regimen", "train", *argv, *flags, cwd=self.folder)

    def get(self, name: str) -> Path:
        """A run, dataset or folder by the name of its recipe, made when it is first asked for."""
        path = self.folder / name
        if not path.exists():
            getattr(self, f"make_{name.partition('/')[0]}")()
        assert path.exists(), name
        return path

    def make_cartpole(self) -> None:
        """Stopped before its end, so that it can be resumed."""
        code = (
            "import regimen\n"
            "settings = {'rollout.steps': 128, 'rollout.num_envs': 4, 'eval.every': 1, 'eval.episodes': 2}\n"
            "regimen.train('cartpole', total_steps=768, callback=lambda info: info['update'] >= 3, track=False,\n"
            "              out='cartpole', checkpoint={'every': '1 updates'}, **settings)\n"
        )
        self.run("-c", code, cwd=self.folder)

    def make_sac(self) -> None:
        self.train("sac", "pendulum", "--algo", "sac", "--total-steps", "600")

    def make_airspace(self) -> None:
        self.train("airspace", "airspace/cross_4all", "--total-steps", "64")

    def make_defence(self) -> None:
        self.train("defence", "network_defense/workflow", "--total-steps", "64")

    def make_challenge(self) -> None:
        self.train("challenge", "network_defense", "--env.history", "true", "--total-steps", "64")

    def make_empowerment(self) -> None:
        self.train("empowerment", "world/corr5", "--algo", "empowerment", "--total-steps", "64")

    def make_corridor(self) -> None:
        (self.folder / "corridor.py").write_text(corridor())
        self.train("corridor", "corridor.py:Corridor", "--total-episodes", "4")

    def make_dataset(self) -> None:
        argv = ("collect", str(self.get("sac")), "--out", "dataset", "--episodes", "3")
        self.run("-m", "regimen", *argv, cwd=self.folder)

    def make_sweep(self) -> None:
        argv = ("sweep", "cartpole", "--grid", "algo.lr=1e-4,1e-3", "--seeds", "1", "--total-steps", "256")
        self.run("-m", "regimen", *argv, "--eval.episodes", "2", "--out", "sweep", cwd=self.folder)

    def make_champion(self) -> None:
        """A folder `runs` whose MLflow store has a registered model."""
        (self.folder / "champion").mkdir()
        goal = ("--stop.target-return", "5", "--stop.convergence-window", "2", "--stop.patience", "1")
        argv = ("train", "cartpole", "--out", "runs/first", "--total-steps", "4000", "--eval.episodes", "2", *goal)
        self.run("-m", "regimen", *argv, cwd=self.folder / "champion")

    def lay(self, argv: list[str], cwd: Path) -> None:
        """Put into `cwd` what the words of a command name."""
        for name in ("examples", "benchmarks"):
            (cwd / name).symlink_to(ROOT / name)
        if any("corridor" in word for word in argv):
            (cwd / "corridor.py").write_text(corridor())
        if any(word.startswith("mypackage") for word in argv):
            (cwd / "mypackage").mkdir()
            made = "\n\ndef make_env(length: int = 8):\n    return Corridor(length)\n"
            (cwd / "mypackage" / "envs.py").write_text(corridor() + made)
        for path, recipe in places(argv):
            if not (cwd / path).exists():
                shutil.copytree(self.get(recipe), cwd / path, symlinks=True)
        if any(word.startswith("docs/images/") for word in argv):
            (cwd / "docs" / "images").mkdir(parents=True)
        if "my.yaml" in argv:
            (cwd / "my.yaml").write_text("settings: {total_episodes: 20}\n")
        if "mymap.yaml" in argv:
            (cwd / "mymap.yaml").write_text("max_episode_steps: 4\nmap: |\n  Hu Ro . .\n")
        if "X.json" in " ".join(argv) and "new" not in argv:
            self.run("-m", "regimen", "scenario", "new", "cross_4all", "--out", "X.json", cwd=cwd)


def places(argv: list[str]) -> Iterator[tuple[str, str]]:
    """(path, recipe) of what a command reads."""
    verb = argv[1] if len(argv) > 1 else ""
    own = {"analyse": "airspace", "validate": "empowerment", "rollouts": "empowerment", "search": "defence"}.get(
        Path(verb).stem.removeprefix("workflow_"), "cartpole"
    )
    out = argv.index("--out") + 1 if "--out" in argv and verb != "resume" else -1
    if verb == "sweep" and argv[2] == "--out":
        yield argv[3], "sweep"
        return
    if argv[0] == "mlflow" or any(word.startswith("models:/") for word in argv):
        yield "runs", "champion/runs"
        return
    if verb in ("runs", "dashboard"):
        yield "runs/first", "cartpole"
    for i, word in enumerate(argv):
        path = word.removesuffix("/config.yaml")
        if i == out:
            continue
        if path == "RUN":
            yield path, own
        elif path == "DATASET":
            yield path, "dataset"
        elif path in ("runs/first", "runs/second", "runs/pair"):
            yield path, own
        elif path in ("runs/sac", "runs/corridor", "runs/challenge"):
            yield path, path.removeprefix("runs/")
        elif path == "runs/NAME":
            yield path, "defence"
        elif path in ("runs/sweep", "runs/lr-gamma"):
            yield path, "sweep"
        elif path == "runs/cartpole":
            yield from ((f"{path}/one", "cartpole"), (f"{path}/two", "cartpole"))
        elif path in ("runs/airspace", "runs/all"):
            yield from ((f"{path}/cross_4all", "airspace"), (f"{path}/other", "airspace"))
        elif path == "runs/airspace/cross_4all":
            yield path, "airspace"


def corridor() -> str:
    """The environment of getting_started.md, as its reader saves it."""
    blocks = PYTHON.findall((ROOT / "docs" / "getting_started.md").read_text())
    return next(block for block in blocks if "class Corridor" in block)
