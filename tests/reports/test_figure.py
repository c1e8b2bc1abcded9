import builtins

import matplotlib
import pytest

from regimen.errors import ConfigError, StorageError
from regimen.reports.figure import GREY, panels, picture, signature, step_axis

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_picture_is_saved_in_the_house_style_and_leaves_no_style_behind(tmp_path):
    before = dict(matplotlib.rcParams)
    with picture(tmp_path / "new" / "a.png", 4, 3) as figure:
        ax = figure.subplots()
        ax.plot([0, 20_000], [1, 2])
        step_axis(ax)
        signature(figure, "cartpole")
        assert not ax.spines["top"].get_visible() and figure.texts[0].get_color() == GREY
    assert (tmp_path / "new" / "a.png").read_bytes()[:8] == PNG
    assert [label.get_text() for label in ax.get_xticklabels()][1:3] == ["0", "5k"]
    assert dict(matplotlib.rcParams) == before


def test_a_figure_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), picture(tmp_path / "a.png", 4, 3):
        1 / 0  # noqa: B018
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"), picture(tmp_path / "file" / "a.png", 4, 3):
        pass


def test_panels_in_rows_and_the_rest_empty(tmp_path):
    with picture(tmp_path / "a.png", 6, 4) as figure:
        axes = panels(figure, 4, 3)
    assert len(axes) == 4 and len(figure.axes) == 6
    assert [ax.axison for ax in figure.axes] == [True] * 4 + [False] * 2


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="regimen\\[plots\\]"), picture(tmp_path / "a.png", 4, 3):
        pass
