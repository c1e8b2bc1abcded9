"""A fifth domain, in a package of its own: nothing of Regimen is touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import regimen
from regimen.config import layers
from regimen.config.domains import domains
from regimen.envs.registry import resolve
from regimen.errors import ConfigError

PACKAGE = Path(__file__).parent / "fifth"
PAGE = """
from pathlib import Path
from regimen.dashboard import derived
from regimen.dashboard.index import WatchedRun

run = WatchedRun(Path.cwd(), ("run",), True)
run.look()
pictures = derived.listing(run)
view = derived.load(run, pictures["episode with seed 0"])
print(run.labels, list(pictures), view["title"], len(view["lines"][0]["y"]))
"""


@pytest.fixture
def shell(tmp_path):
    """Run `regimen` where the package is installed, as pip would leave it: on the path, with an entry point."""
    installed = tmp_path / "site" / "forest-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: forest\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[regimen.domains]\nforest = forest:DOMAIN\n")
    paths = [str(tmp_path / "site"), str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(*args: str, code: int = 0) -> str:
        command = [sys.executable, *(args if args[0] == "-c" else ("-m", "regimen", *args))]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


def test_it_is_listed_and_its_verb_runs(shell):
    assert "forest                     plant a tree where there is room" in shell("envs")
    assert "The forest within 512 steps." in shell("presets")
    assert "count-trees NUMBER     say how many trees there are" in shell("--help")
    assert shell("count-trees", "3") == "3 trees\n"
    assert "did you mean 'count-trees'" in shell("count-tree", code=2)
    assert "count-trees" in shell("completion", "bash")
    python = "import regimen, sys; print(regimen.forest.count(2), 'forest' in dir(regimen), 'jax' in sys.modules)"
    assert shell("-c", python) == "2 trees True False\n"


def test_it_trains_with_its_preset(shell, tmp_path):
    shell("train", "forest", "--no-track", "--algo.gamma", "0.9", "--out", "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env"] == "forest" and summary["env_steps"] == 512
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "preset: tuned" in config and "growth_gamma: 0.9" in config
    assert "zero_conflict_streak" in summary and 0 <= summary["eval_metrics"]["felled"] <= 1
    assert "By felled trees (smaller is better)" in shell("compare", "run", "--metric", "felled")
    assert "By planted (larger is better)" in shell("compare", "run", "--metric", "planted")
    shell("replay", "run", "--no-gif")
    titles = ["episode of the best policy", "episode with seed 0"]
    assert shell("-c", PAGE) == f"{{'felled': 'felled trees'}} {titles} episode with seed 0 4\n"


def test_a_broken_domain_is_left_out_and_named(shell, tmp_path):
    (tmp_path / "site" / "forest-1.0.dist-info" / "entry_points.txt").write_text("[regimen.domains]\nx = json:dumps\n")
    listed = shell("envs")
    assert "cartpole" in listed and "the domain 'json:dumps' of an installed package is left out: TypeError" in listed


@pytest.mark.parametrize("name", [name for name, domain in domains().items() if domain.discount is not None])
def test_the_discount_of_shaping_follows_the_learners(name):
    domain = domains()[name]
    env, (field, default) = next(iter(domain.environments)), domain.discount
    assert getattr(resolve(env).native, field) == default

    def env_args(**settings):
        return layers.build_config(env, algo="ppo", preset="balanced", overrides=settings).env_args

    assert env_args(algo={"gamma": default}) == {}
    assert env_args(algo={"gamma": 0.9}) == {field: 0.9}
    assert env_args(algo={"gamma": 0.9}, env_args={field: 0.9}) == {field: 0.9}
    with pytest.raises(
        ConfigError, match=rf"env\.{field}: 0.8 is not algo\.gamma 0.9.*leave env\.{field} out: it follows"
    ):
        env_args(algo={"gamma": 0.9}, env_args={field: 0.8})
    assert field not in layers.build_config(env, algo="bc").env_args  # it has no discount


def test_what_is_public():
    functions = ["train", "resume", "evaluate", "load_policy", "make_env", "native_env", "check_env"]
    registries = ["register_env", "register_algorithm", "register_network"]
    classes = ["Trainer", "NativeEnv", "Spec", "PPO", "SAC", "IMPALA", "APPO", "CQL", "BC", "TrajectoryBuffer"]
    documented = ["Policy", "Result", "TimeStep", "collect", "compare", "evaluate_in", "leaderboard"]
    assert sorted(regimen.__all__) == sorted([*functions, *registries, *classes, *documented])
    assert all(callable(getattr(regimen, name)) for name in regimen.__all__)
    assert set(dir(regimen)) == {*regimen.__all__, "__version__", "airspace", "empowerment"}
    assert dir(regimen.empowerment) == ["rollouts", "solve", "validate"] and callable(regimen.empowerment.validate)
    assert callable(regimen.airspace.analyse)
    with pytest.raises(AttributeError, match="no attribute 'solve'"):
        regimen.solve  # noqa: B018
    with pytest.raises(AttributeError, match=r"regimen\.airspace has no 'solve'"):
        regimen.airspace.solve  # noqa: B018
