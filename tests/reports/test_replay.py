"""A trained policy to look at, and on its own."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

import regimen
from regimen.cli.main import main
from regimen.envs.registry import ENVS
from regimen.reports.replay import ReplayLimits, leave_replay, try_leave_replay, write_gif
from support import TINY, UPDATE, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("replay") / "run"
    tiny(out, updates=2, **{"checkpoint.every": "1"})
    return out


def test_a_native_env_borrows_the_renderer_of_its_twin(run, capsys):
    assert ENVS["cartpole"].gym_id == "CartPole-v1"
    assert main(["replay", str(run), "--seed", "4", "--episodes", "2"]) == 0
    assert "seed-4.gif" in capsys.readouterr().out
    with open(run / "replays" / "seed-5.csv") as file:
        rows = list(csv.DictReader(file))
    image = Image.open(run / "replays" / "seed-5.gif")
    assert image.n_frames >= 2 and len(rows) >= 8
    assert [int(r["step"]) for r in rows] == list(range(len(rows))) and rows[-1]["terminated"] == "1"
    policy = regimen.load_policy(run)
    first = np.array([float(rows[0][f"obs[{i}]"]) for i in range(4)])
    assert policy.act(first) == int(float(rows[0]["action"])), "the policy's own actions, not random ones"


def test_a_table_will_do_where_nothing_can_be_drawn(run, capsys):
    assert main(["replay", str(run), "--env.gravity", "5"]) == 0  # its own parameters: no twin has them
    assert "nothing to draw" in capsys.readouterr().out and (run / "replays" / "seed-0.csv").exists()


def test_a_native_env_draws_itself(tmp_path, capsys):
    tiny(tmp_path / "run", updates=1, env="catch_point")
    assert main(["replay", str(tmp_path / "run")]) == 0
    assert "seed-0.gif" in capsys.readouterr().out
    with open(tmp_path / "run" / "replays" / "seed-0.csv") as file:
        rows = list(csv.DictReader(file))
    image = Image.open(tmp_path / "run" / "replays" / "seed-0.gif")
    assert image.size == (320, 320) and image.info["duration"] == 100, "ten pictures a second, as the environment says"
    assert 2 <= image.n_frames <= len(rows) + 1  # alike pictures are merged
    assert {"action/choice", "action/move"} <= set(rows[0])


def test_export_writes_a_policy_that_loads(run, tmp_path, capsys):
    assert main(["export", str(run), "--out", str(tmp_path / "policy"), "--checkpoint", "32"]) == 0
    policy = regimen.load_policy(tmp_path / "policy")
    assert policy.meta["env_steps"] == 32 and policy.act(np.zeros(4)) in (0, 1)
    assert main(["export", str(run), "--out", str(tmp_path / "policy")]) == 6
    assert "already exists" in capsys.readouterr().err


def test_a_scenario_is_refused_where_there_is_none_to_choose(run, capsys):
    assert main(["replay", str(run), "--scenario", "converging"]) == 3
    assert capsys.readouterr().err.strip() == "regimen: error: scenario: cartpole has none to choose from"


def test_a_run_leaves_a_short_replay_of_its_best_policy(tmp_path, monkeypatch):
    monkeypatch.setattr("regimen.runs.delivery.try_leave_replay", try_leave_replay)
    settings = TINY | {"log.replay": True, "total_steps": UPDATE}
    regimen.train("pendulum", **settings, out=tmp_path / "run")  # its episodes have 200 steps
    folder = tmp_path / "run" / "replays"
    assert {path.name for path in folder.iterdir()} == {"best.csv", "best.gif"}
    assert "replays" in (tmp_path / "run" / "report.html").read_text()
    (folder / "best.gif").unlink()
    names = [path.name for path in leave_replay(tmp_path / "run", ReplayLimits(steps=30, frames=2))]
    assert names == ["best.csv", "best.gif"]
    assert len((folder / "best.csv").read_text().splitlines()) == 31, "a heading and thirty steps"
    assert Image.open(folder / "best.gif").n_frames <= 2
    leave_replay(tmp_path / "run", ReplayLimits(steps=30, frames=2, size=1_000))
    assert (folder / "best.csv").stat().st_size <= 1_000


def test_a_run_says_what_its_pictures_show(tmp_path):
    tiny(tmp_path / "run", updates=1, env="platform")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["legend"].startswith("Blue: the agent")


def test_what_cannot_be_drawn_leaves_nothing_and_what_breaks_ends_nothing(tmp_path, monkeypatch):
    tiny(tmp_path / "run", env="probe/action")
    assert try_leave_replay(tmp_path / "run") == ([], None) and not (tmp_path / "run" / "replays").exists()
    monkeypatch.setattr("regimen.reports.replay.drawing_env", lambda *_, **__: 1 / 0)
    assert try_leave_replay(tmp_path / "run") == ([], "none: division by zero")


def test_an_animation_that_is_too_large_loses_every_second_frame(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (8, 40, 40, 3), np.uint8)
    write_gif(tmp_path / "whole.gif", list(noise), 8)
    size = (tmp_path / "whole.gif").stat().st_size
    write_gif(tmp_path / "less.gif", list(noise), 8, size * 0.6)
    image = Image.open(tmp_path / "less.gif")
    assert image.n_frames == 4 and image.info["duration"] == 250 and (tmp_path / "less.gif").stat().st_size < size * 0.6
