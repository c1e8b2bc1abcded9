import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from regimen.errors import StorageError
from regimen.files.run_dir import RunFiles
from regimen.reports import figure as kit
from regimen.reports.plots import (
    PLOTS,
    LoggedRun,
    centred_average,
    component_grid,
    moving_average,
    plot_group,
    plot_run,
    thin,
)
from synthetic_run import make_run

PNG = b"\x89PNG\r\n\x1a\n"


def test_every_plot_with_data_is_written(tmp_path):
    run = make_run(tmp_path / "run", updates=24, components=True)
    paths = plot_run(run)
    assert {p.name for p in paths} == {
        "return.png",
        "evaluation.png",
        "losses.png",
        "entropy.png",
        "kl.png",
        "explained_variance.png",
        "components.png",
        "weights.png",
        "entropy_parts.png",
        "curriculum.png",
        "overview.png",
    }
    assert all(p.parent == run / "plots" and p.read_bytes()[:8] == PNG for p in paths)
    assert sorted(run.glob("plots/*")) == sorted(paths), "no temporary file is left"


def test_components_have_their_lines_and_bands(tmp_path):
    run = LoggedRun(make_run(tmp_path / "run", updates=24, components=True))
    grid = component_grid(run)
    assert [ax.get_title(loc="left") or ax.get_title() for ax in grid.axes] == ["goal", "fuel"]
    x = 1500.0 * np.arange(1, 25)
    for ax, name in zip(grid.axes, ("goal", "fuel")):
        band = ax.collections[0].get_paths()[0].vertices
        low, high = (run.series(f"rollout/reward/{name}{end}")[1] for end in ("_min", "_max"))
        assert band[:, 1].min() == pytest.approx(low.min()) and band[:, 1].max() == pytest.approx(high.max())
        np.testing.assert_allclose(ax.lines[-1].get_xdata(), x)
        np.testing.assert_allclose(ax.lines[-1].get_ydata(), run.series(f"rollout/reward/{name}")[1])
    colors = {}
    for name in ("components", "weights", "explained_variance"):
        ax = Figure().subplots()
        assert PLOTS[name](ax, run)
        drawn = {line.get_label(): line.get_color() for line in ax.lines if not line.get_label().startswith("_")}
        assert {"goal", "fuel"} <= set(drawn)
        colors[name] = {part: drawn[part] for part in ("goal", "fuel")}
    assert colors["components"] == colors["weights"] == colors["explained_variance"], "one colour for each, everywhere"


def test_one_component_is_no_picture(tmp_path):
    with RunFiles.create(tmp_path / "run", {"env": "cartpole"}, "") as files:
        files.log({"env_steps": 10, "updates": 1, "rollout/reward/a": 1.0, "rollout/reward/a_min": 0.0})
        assert plot_run(files.path) == []


def test_a_plot_without_data_is_skipped(tmp_path):
    with RunFiles.create(tmp_path / "run", {"env": "cartpole"}, "") as files:
        assert plot_run(files.path) == []
        files.log({"env_steps": 10, "updates": 1, "train/entropy": 0.5})
        assert {p.name for p in plot_run(files.path)} == {"entropy.png", "overview.png"}


def test_group_of_seeds(tmp_path):
    runs = [make_run(tmp_path / f"seed-{i}", updates=10 + 2 * i, seed=i) for i in range(3)]
    assert plot_group(runs, tmp_path / "group").read_bytes()[:8] == PNG
    assert plot_group(runs[:1], tmp_path / "one.png") == tmp_path / "one.png"
    with (
        RunFiles.create(tmp_path / "empty", {"env": "cartpole"}, "") as files,
        pytest.raises(StorageError, match="return"),
    ):
        plot_group([files.path], tmp_path / "none.png")


def test_averages_and_thinning():
    y = np.arange(6.0)
    np.testing.assert_allclose(moving_average(y, 3), [0, 0.5, 1, 2, 3, 4])
    np.testing.assert_allclose(centred_average(y, 3), [0.5, 1, 2, 3, 4, 4.5])
    assert len(moving_average(np.zeros(0), 3)) == 0
    x, z = thin(10, np.arange(1000), np.arange(1000) * 2)
    assert len(x) <= 10 and x[0] == 0 and x[-1] == 999 and (z == 2 * x).all()


def test_without_matplotlib_one_line_names_the_extra(tmp_path):
    run = make_run(tmp_path / "run", updates=2)
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"  # as if it were not installed
        "from regimen.reports.plots import try_plot_run\n"
        "print(try_plot_run(sys.argv[1])[1]); print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["plots need matplotlib: pip install 'regimen[plots]'", "False"]


def test_many_curves_differ_and_their_names_lie_beside_them():
    """Nine components, ten runs: no colour and dash twice, and no name over a curve."""
    assert len(set(kit.strokes(32))) == 32
    with kit.style():
        figure = kit.blank(7, 4)
        ax = figure.subplots()
        for k, (color, dash) in enumerate(kit.strokes(10)):
            ax.plot([0, 1], [k, k], color=color, linestyle=dash, label=f"curve {k}")
        kit.legend(ax)
        assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 10
        assert [line.get_linestyle() for line in ax.lines[:8]] == ["-"] * 8
        figure.draw_without_rendering()
        assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1
