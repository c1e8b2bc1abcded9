"""The fault suite's runner, and a short form of its gates."""

import sys

import pytest

from faults import run, watch
from faults.run import GATES, Gate, absent, main, outcome


def test_a_gate_that_fails_has_lost_and_one_without_its_packages_says_so(tmp_path):
    assert absent(Gate("x", "kills:run_native", 1, ("no_such_package",))) == "no_such_package: not installed"
    row = outcome(Gate("x", "kills:no_such_gate", 1), 1.0, 0, tmp_path / "x")
    assert row["losses"] == 1 and "no_such_gate" in row["detail"]


def test_the_command_ends_with_1_on_a_loss(tmp_path, monkeypatch, capsys):
    def gates(losses: int, executions: int) -> None:
        found = {"tries": 3, "losses": losses, "executions": executions, "detail": "as told"}
        monkeypatch.setattr(run, "apart", lambda gate, *_: {"gate": gate.name, "seconds": 1, **found})

    for counts, code in (((0, 0), 0), ((1, 0), 1), ((0, 1), 1)):
        gates(*counts)
        assert main(["--only", "native", "--json", str(tmp_path / "table.json")]) == code
        assert f"| kills: native | 3 | {counts[0]} | {counts[1]} | 1 | as told |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--only", "nothing of the kind"])
    assert "no such gate" in capsys.readouterr().err


def test_a_gate_that_hangs_or_leaves_a_process_has_lost(tmp_path, monkeypatch):
    """And nothing of it stays."""
    begin = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    monkeypatch.setattr(watch, "PATIENCE", 0.3)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / watch.TEMPORARY).write_text(str(elsewhere))
    assert watch.watched([sys.executable, "-c", begin], tmp_path, 60) == ["left behind: sleep 600"]
    assert not elsewhere.exists()
    assert watch.watched(["sleep", "600"], tmp_path, 0.5) == ["not finished within 0.5 s"]
    assert watch.watched([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, 60) == [
        "the gate itself ended with exit code 3"
    ]


ELSEWHERE = ("groups", "workers")  # they have short forms of their own
HERE = [gate for gate in GATES if not gate.target.startswith(ELSEWHERE)]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("gate", [pytest.param(gate, id=gate.target) for gate in HERE])
def test_a_short_form(gate, tmp_path):
    """One or two tries of each."""
    row = outcome(gate, 2 / gate.tries, 1, tmp_path / "gate")
    if absent(gate):
        pytest.skip(row["detail"])
    assert not row["losses"] and not row["executions"], row
    assert row["tries"] or "can be mounted" in row["detail"], row


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_thousand_corruptions(tmp_path):
    gate = next(gate for gate in GATES if gate.name == "corruptions")
    row = outcome(gate, 1.0, 0, tmp_path / "gate")
    assert (row["tries"], row["losses"]) == (2000, 0), row
