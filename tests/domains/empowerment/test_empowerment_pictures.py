"""Pictures of solved worlds: what is in them is computed here again by hand, and all of them are written."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from regimen.cli.main import main
from regimen.domains.empowerment.api import solve
from regimen.domains.empowerment.pictures import draw
from regimen.domains.empowerment.pictures.episodes import bits, play
from regimen.domains.empowerment.pictures.scene import scene_of, write_power


@pytest.fixture(scope="module")
def trivial():
    return solve("world/trivial", beta_r=100.0)


@pytest.fixture(scope="module")
def corridor():
    return solve("world/way1x5")


def test_usage_counts_every_step_once(trivial, corridor):
    """Over places and actions the expected counts sum to the number of steps, and those of the start are known."""
    for solution in (trivial, corridor):
        scene = scene_of(solution.world)
        does = draw.usage(solution, scene)
        assert does.sum() == pytest.approx(solution.world.max_episode_steps)
    does = draw.usage(trivial, scene_of(trivial.world))[0]
    first = trivial.pi_r[0][0]
    here = does[0, 0]  # at 1,1, facing east: where it starts
    assert here[3] >= first[3]
    assert does[4].sum() < does[0].sum()  # it hardly ever goes into the niche


def test_means_by_place():
    means = draw.mean_by(np.array([0, 0, 2]), np.array([1.0, 3.0, 5.0]), 4)
    np.testing.assert_array_equal(means, [2.0, np.nan, 5.0, np.nan])


def test_quantiles():
    values, weights = np.array([3.0, 1.0, 2.0, 9.0]), np.array([0.5, 0.25, 0.25, 0.0])
    assert draw.quantiles(values, weights) == pytest.approx((2.25, 1.0, 3.0))
    assert np.isnan(draw.quantiles(values, np.zeros(4))).all()


def test_an_episode_follows_the_laws(trivial):
    episode = play(trivial, seed=3)
    table, world = trivial.table, trivial.world
    assert len(episode.states) == world.max_episode_steps + 1
    for s, acted, after in zip(episode.states, episode.actions, episode.states[1:]):
        joint = acted[0] + world.num_actions * acted[1]
        assert table.probability(np.array(s))[joint][table.successor[s, joint] == after].sum() > 0
    assert episode.actions[0, 0] == np.argmax(trivial.pi_r[0][0])


def test_bits(trivial):
    found = bits(trivial)
    assert list(found) == ["W_0", "aggregate", "total"]
    theory = trivial.theory
    assert found["W_0"][0][0] == pytest.approx(np.log2(trivial.x_h[0][0, 0]))
    assert found["total"][0][0] == pytest.approx(-np.log2(-trivial.v_r[0][0]) / (theory.xi * theory.eta), rel=1e-5)
    assert found["aggregate"][0][0] == pytest.approx(found["W_0"][0][0], rel=1e-5)  # one human


def test_solve_writes_all_of_them(tmp_path, capsys):
    assert main(["solve", "world/trivial", "--plots", str(tmp_path), "--env.max_episode_steps", "4"]) == 0
    names = {"power.png", "policy.png", "bits.png", "episode.png", "episode.gif"}
    assert {path.name for path in tmp_path.iterdir()} == names | {"views"}
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    with Image.open(tmp_path / "episode.gif") as gif:
        assert gif.n_frames >= 4
    for name in names - {"episode.gif"}:
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 200
            assert len(picture.convert("RGB").getcolors(10**6)) > 20


def test_a_world_without_a_map_has_curves_only(tmp_path, corridor, monkeypatch):
    monkeypatch.setattr(draw, "scene_of", lambda world: None)
    written = {path.name for path in draw.plot_solution(corridor, tmp_path)}
    assert written == {"bits.png", "episode.png", "episode.gif"}


def test_power_for_the_live_page(tmp_path, corridor):
    """Numbers of the heat map are those of the solution, where the robot can be and nowhere else."""
    import json

    scene = scene_of(corridor.world)
    episode = play(corridor, 0)
    view = json.loads(write_power(tmp_path, corridor, scene, episode).read_text())
    assert view["kind"] == "grid" and len(view["rows"]) == scene.height and len(view["frames"]) == len(episode.actions)
    start = corridor.table.states[0]
    x, y = scene.cells[scene.at(start)[0]]
    assert view["frames"][0]["values"][y][x] == pytest.approx(np.log2(corridor.x_h[0][0]).mean(), abs=1e-3)
    assert sum(v is not None for row in view["frames"][0]["values"] for v in row) == 1  # at time 0 it is there
    assert [view["frames"][0]["agents"][0][k] for k in ("name", "row", "column")] == ["robot", y, x]
