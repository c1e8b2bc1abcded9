"""What the page says of a run without pictures."""

from types import SimpleNamespace

import pytest

from regimen.dashboard.derived import hint
from regimen.files import background

REPLAY = "regimen replay {run} writes an episode of its policy, as an animation where it can be drawn."


@pytest.mark.parametrize(
    ("delivery", "words"),
    [
        ({"state": "pending"}, "They were not finished: regimen report {run} makes what is missing."),
        ({"state": "failed", "error": "no ink"}, "They were not finished: regimen report {run} makes what is missing."),
        (
            {"state": "done"},
            "regimen replay {run} writes an episode of its policy, as an animation where it can be drawn.",
        ),
    ],
)
def test_how_a_run_gets_pictures(tmp_path, delivery, words):
    run = SimpleNamespace(
        root=tmp_path, parts=("run",), config={"env": "cartpole"}, state="finished", status={"delivery": delivery}
    )
    (tmp_path / "run" / "policy").mkdir(parents=True)
    assert hint(run) == [words.format(run=tmp_path / "run")]  # type: ignore[arg-type]
    with background.claim(tmp_path / "run") as file:
        assert file is not None
        if delivery["state"] == "pending":
            assert hint(run) == ["Its pictures are being drawn."]  # type: ignore[arg-type]


def test_a_run_without_a_policy_is_not_told_to_draw_it(tmp_path):
    (tmp_path / "run").mkdir()
    run = SimpleNamespace(root=tmp_path, parts=("run",), config={"env": "durotaxis"}, state="interrupted", status={})
    assert hint(run) == ["It ended before it had a policy whose episodes could be drawn."]  # type: ignore[arg-type]
    (tmp_path / "run" / "checkpoints").mkdir()
    assert "regimen replay" in hint(run)[0]  # type: ignore[arg-type]
