import io
import os
import pty
import re
import subprocess
import sys

import pytest

from regimen.files.console import (
    Console,
    _Panel,
    batch_line,
    component_sums,
    eval_line,
    focus,
    memory_mb,
    sparkline,
)
from regimen.words import clock, count

POINT = {
    "updates": 12,
    "env_steps": 24_000,
    "episodes": 120,
    "rollout/return_mean": 187.43,
    "rollout/episodes": 10,
    "rollout/success_rate": 0.6,
    "train/loss": 0.1234,
    "train/entropy": 0.5555,
}
EVAL = {"eval/return_mean": 480.12, "eval/return_std": 5.21, "eval/length_mean": 480.2, "eval/episodes": 10}
PARTS = {
    "train/weight/effort": 0.25,
    "train/weight/goal": 0.432,
    "train/weight/time_max": 0.318,
    "rollout/reward/goal": 12.5,
    "rollout/reward/goal_min": -3.0,
    "rollout/reward/goal_max": 40.0,
    "rollout/reward/effort": -0.125,
    "rollout/reward/time_max": -7.0,
}
LINE = "Batch 12 | R 187.4 (MA 150.2, best 201.0) | loss 0.123 | entropy 0.56 | episodes 10 | success 0.60"


def without(*names: str) -> dict:
    return {k: v for k, v in POINT.items() if k not in names}


def test_batch_line_exactly():
    assert batch_line(POINT, 150.2, 201.0) == LINE
    assert batch_line(without("rollout/success_rate"), 150.2, 201.0) == LINE.removesuffix(" | success 0.60")
    no_episode = without("rollout/return_mean", "rollout/success_rate", "rollout/episodes")
    assert batch_line(no_episode, 150.2, 201.0) == "Batch 12 | loss 0.123 | entropy 0.56"
    assert (
        batch_line({"updates": 1, "rollout/return_mean": -0.25}, None, None)
        == "Batch 1 | R -0.250 (MA -0.250, best -0.250)"
    )
    assert batch_line({"updates": 1, "train/loss": 0.00002}, None, None) == "Batch 1 | loss 2.0e-05"


def test_stages_and_further_metrics_are_shown_as_the_algorithm_declares_them():
    """An algorithm may log a `stage` without names for it: a number."""
    point, algorithm = {"updates": 3, "train/stage": 1.0}, (("warm", "ramp"), ("beta",))
    assert batch_line(point, None, None) == "Batch 3 | stage 1"
    assert batch_line(point | {"train/beta": 0.25}, None, None) == "Batch 3 | stage 1", "not declared"
    assert batch_line(point, None, None, *algorithm) == "Batch 3 | stage 1 (ramp)"
    assert batch_line(point | {"train/stage": 99.0}, None, None, *algorithm) == "Batch 3 | stage 99"
    ramp = batch_line(point | {"train/beta": 0.25}, None, None, *algorithm)
    assert ramp == "Batch 3 | stage 1 (ramp) | beta 0.250"
    assert batch_line({"updates": 3, "train/beta": 0.25}, None, None, *algorithm) == "Batch 3 | beta 0.250"
    out = io.StringIO()
    console = Console(trace=True, file=out)
    console.start(10, "steps", *algorithm)
    console.update(point)
    assert out.getvalue() == "Batch 3 | stage 1 (ramp)\n"
    panel = _Panel(10, "steps", *algorithm)
    panel.update(point | {"train/beta": 0.25}, None, None)
    assert dict(panel.figures()) | {"stage": "1 (ramp)", "beta": "0.250"} == dict(panel.figures())


def test_focus_is_the_component_that_weighs_most():
    assert focus(POINT) is None and focus(PARTS) == "goal(0.43)"
    assert batch_line({**POINT, **PARTS}, 150.2, 201.0) == LINE + " | focus goal(0.43)"
    assert focus({"train/weight/a": 0.5, "train/weight/b": 0.5}) == "all(0.50)"
    assert batch_line({"updates": 1, "train/weight/a": 1.0}, None, None) == "Batch 1 | focus a(1.00)"
    panel = _Panel(100, "steps")
    panel.update(POINT, None, None)
    assert "focus" not in dict(panel.figures())
    panel.update(PARTS, None, None)
    assert dict(panel.figures())["focus"] == "goal(0.43)"


def test_sums_of_components_leave_out_their_bands():
    assert component_sums(POINT) == {}
    assert component_sums(PARTS) == {"goal": 12.5, "effort": -0.125, "time_max": -7.0}


def test_eval_line_exactly():
    assert eval_line({**POINT, **EVAL}) == "Eval 12 | R 480.1 ± 5.2 | length 480 | episodes 10"
    assert (
        eval_line({"updates": 3, "eval/return_mean": -5.0, "eval/success_rate": 0.5})
        == "Eval 3 | R -5.0 | success 0.50"
    )
    streaks = {"zero_conflict_streak": 4, "perfect_streak": 0}
    assert eval_line({"eval/return_mean": 1.0, **streaks}).endswith("| no conflict 4 in a row | perfect 0 in a row")


def test_moving_average_and_best():
    out = io.StringIO()
    console = Console(trace=True, ma=2, file=out)
    for update, R in enumerate((10.0, 30.0, 20.0), 1):
        console.update({"updates": update, "rollout/return_mean": R})
    console.update({"updates": 4})
    console.update({"updates": 5, "rollout/return_mean": 20.0, "rollout/return_ma": 17.0})
    assert out.getvalue().splitlines() == [
        "Batch 1 | R 10.0 (MA 10.0, best 10.0)",
        "Batch 2 | R 30.0 (MA 20.0, best 30.0)",
        "Batch 3 | R 20.0 (MA 25.0, best 30.0)",
        "Batch 4",
        "Batch 5 | R 20.0 (MA 17.0, best 30.0)",
    ]


def test_a_pipe_gets_few_batch_lines_but_every_evaluation_and_the_last_batch(monkeypatch):
    monkeypatch.setattr("regimen.files.console.LINE_SECONDS", 1000.0)  # however slow the machine
    out = io.StringIO()
    console = Console(file=out)
    console.header(["cartpole with PPO", "update every 10 episodes"])
    console.start(1000, "steps")
    for update in range(1, 101):
        console.update({**POINT, "updates": update, **(EVAL if update % 50 == 0 else {})})
    console.event("saved")
    console.stop()
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["cartpole with PPO", "update every 10 episodes"]
    assert [line.split(" |")[0] for line in lines[2:]] == ["Batch 1", "Eval 50", "Eval 100", "saved", "Batch 100"]
    assert "\x1b" not in out.getvalue()


WORKERS = [
    {
        "worker": i,
        "state": "collecting",
        "env_steps": 12_000,
        "steps_per_second": 1234.5,
        "heartbeat_age": age,
        "restarts": restarts,
        "waiting_for": "environment 3",
    }
    for i, age, restarts in [(0, 0.4, 0), (1, 7.2, 2)]
]


def test_workers_in_a_pipe_and_in_the_panel(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("regimen.files.console.time.monotonic", lambda: now[0])
    out = io.StringIO()
    console = Console(live=False, file=out)
    for now[0] in (1.0, 29.0, 31.0, 32.0):
        console.workers(WORKERS)
    line = "Workers | 0 collecting 1.23k/s | 1 collecting 1.23k/s, 2 restarts, silent 7 s\n"
    assert out.getvalue() == line
    panel = _Panel(100, "steps")
    panel.workers = WORKERS
    shown = io.StringIO()
    from rich.console import Console as RichConsole

    RichConsole(file=shown, width=100).print(panel)
    text = shown.getvalue()
    assert "heartbeat" in text and "7 s ago" in text and text.count("environment 3") == 2


def test_quiet_prints_nothing():
    out = io.StringIO()
    console = Console(quiet=True, live=True, file=out)
    console.header(["x"])
    console.start(10, "steps")
    console.update({**POINT, **EVAL})
    console.event("x")
    console.stop()
    assert out.getvalue() == ""


def test_a_stream_without_unicode_gets_ascii():
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"))
    console.update({"updates": 1, **EVAL})
    assert b"R 480.1 +/- 5.2" in raw.getvalue()


def test_a_reader_that_goes_away_does_not_stop_training():
    code = (
        "import sys; from regimen.files.console import Console\n"
        "console = Console(trace=True); console.start(10, 'steps')\n"
        "for i in range(20000): console.update({'updates': i, 'rollout/return_mean': 1.0})\n"
        "console.stop(); print('still here', file=sys.stderr)"
    )
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        os.read(read, 100)
        os.close(read)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "still here\n")


def run_on_a_terminal(**env: str) -> str:
    code = (
        "import time; from regimen.files.console import Console\n"
        f"point = { ({**POINT, **EVAL, **PARTS, 'train/approx_kl': 0.004, 'time/steps_per_second': 51234.0})!r}\n"
        "console = Console(); console.header(['cartpole']); console.start(100_000, 'steps')\n"
        "console.update(point); console.update({**point, 'updates': 13, 'rollout/return_mean': 200.0})\n"
        "console.event('checkpoint saved'); console.stop()"
    )
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=slave,
        env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", "COLUMNS": "100", **env},
    ) as process:
        os.close(slave)
        data = b""
        while True:
            try:
                chunk = os.read(master, 1 << 16)
            except OSError:  # Linux: the other side is closed
                break
            if not chunk:
                break
            data += chunk
    os.close(master)
    assert process.returncode == 0
    return data.decode()


def test_live_panel_on_a_terminal():
    text = run_on_a_terminal()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    last = plain[plain.rindex("training") :]
    for expected in ("24%", "24k / 100k steps", "200.0", "193.7", "51.2k", "0.0040", "480.1 ± 5.2", "MB", "0.60"):
        assert expected in last, expected
    assert re.search(r"focus +goal\(0.43\)", last) and "components goal 12.5, effort -0.125, time_max -7.0" in last
    assert "checkpoint saved" in plain and "Batch" not in plain
    assert "\x1b[32m" in text, "the line of returns is green"


def test_no_color_is_respected():
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])m", run_on_a_terminal(NO_COLOR="1"))


def test_a_dumb_terminal_gets_plain_lines():
    assert "\x1b" not in run_on_a_terminal(TERM="dumb")


def test_time_left():
    panel = _Panel(1000, "steps")
    assert panel.seconds_left() is None and "compiling" in panel.progress()
    panel.update({"env_steps": 100}, None, None)
    panel._marks[0] = (panel._marks[0][0] - 10.0, 0.0)  # the first point was 10 s ago, at step 0
    assert panel.seconds_left() == pytest.approx(90, rel=0.05)
    assert _Panel(None, "updates").seconds_left() is None


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (20_000, "20k"), (1_234_567, "1.23M"), (2.5, "2.5"), (3e9, "3G")]
)
def test_counts(value, text):
    assert count(value) == text


def test_small_helpers():
    assert (clock(0), clock(75), clock(3661)) == ("0:00", "1:15", "1:01:01")
    assert sparkline([0, 1, 2]) == "▁▅█" and sparkline([3, 3]) == "▁▁"
    assert (memory_mb() or 0) > 1
