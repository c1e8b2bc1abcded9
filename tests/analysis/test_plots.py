import subprocess
import sys

import numpy as np
import pytest
from synthetic_run import make_run

from regimen.analysis.plots import centred_average, moving_average, plot_group, plot_run, thin
from regimen.errors import StorageError
from regimen.tracking.files import RunFiles

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
        "overview.png",
    }
    assert all(p.parent == run / "plots" and p.read_bytes()[:8] == PNG for p in paths)
    assert sorted(run.glob("plots/*")) == sorted(paths), "no temporary file is left"


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
        "from regimen.analysis.plots import try_plot_run\n"
        "print(try_plot_run(sys.argv[1])[1]); print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["plots need matplotlib: pip install 'regimen[plots]'", "False"]
