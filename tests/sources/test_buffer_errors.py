"""Misuse of the trajectory buffer is one clear line, and docs/own_loop.md says what is true."""

import re
from pathlib import Path

import numpy as np
import pytest

from regimen.errors import RegimenError
from regimen.sources.trajectory_buffer import TrajectoryBuffer, TrajectoryError

GAMMA, LAMBDA = 0.9, 0.8
PAGE = Path(__file__).parents[2] / "docs" / "own_loop.md"
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
nan, inf = float("nan"), float("inf")


def fresh(open_steps=None):
    """A buffer with one finished episode of two steps, and perhaps an open one."""
    buffer = TrajectoryBuffer()
    buffer.add_episode(np.zeros((2, 3)), [0, 1], [1.0, 1.0], [0.0, 0.0], log_probs=[-1.0, -1.0])
    if open_steps is not None:
        buffer.start_episode()
        for _ in range(open_steps):
            buffer.add_step(np.zeros(3), 0, 1.0, 0.0, log_prob=-1.0)
    return buffer


def step(state=(0.0, 0.0, 0.0), action=0, reward=1.0, value=0.0, log_prob=-1.0, **rest):
    state = np.asarray(state) if isinstance(state, tuple) else state
    return lambda b: b.add_step(state, action, reward, value, log_prob, **rest)


def finish(*args, **kwargs):
    return lambda b: b.finish_episode(*args, **kwargs)


def compute(*args):
    return lambda b: b.compute_returns_and_advantages(*args)


def whole(states=((0.0,) * 3,) * 2, actions=(0, 1), rewards=(1.0, 1.0), values=(0.0, 0.0), log_probs=(-1.0, -1.0), **k):
    lists = [list(x) if isinstance(x, tuple) else x for x in (actions, rewards, values, log_probs)]
    states = [np.asarray(s) for s in states] if isinstance(states, tuple) else states
    return lambda b: b.add_episode(states, *lists[:3], log_probs=lists[3], **k)


empty = TrajectoryBuffer

MISUSE = {
    "step before start": (fresh, step(), "add_step: no episode is open; call start_episode"),
    "finish before start": (fresh, finish(), "finish_episode: no episode is open"),
    "start twice": (lambda: fresh(1), lambda b: b.start_episode(), "start_episode: episode 1 is still open"),
    "whole while open": (lambda: fresh(1), whole(), "add_episode: episode 1 is still open"),
    "finish empty": (lambda: fresh(0), finish(), "finish_episode: episode 1 has no steps"),
    "compute empty": (empty, compute(0.9, 0.9), "the buffer is empty; finish an episode first"),
    "compute open": (lambda: fresh(3), compute(0.9, 0.9), "episode 1 is still open after 3 steps; call finish_episode"),
    "minibatches too early": (fresh, lambda b: b.create_minibatches(2), "no advantages yet: call compute_returns"),
    "rows too early": (fresh, lambda b: b.rows(), "no advantages yet: call compute_returns"),
    "whole in another order": (
        fresh,
        lambda b: b.add_episode(np.zeros((2, 3)), [0, 1], [1.0, 1.0], [0.0, 0.0], [-1.0, -1.0], 0.0, True),
        "give log_probs, final_value, terminated and success by name",
    ),
    "size 0": (fresh, lambda b: b.create_minibatches(0), "size: 0 must be at least 1"),
    "size half": (fresh, lambda b: b.create_minibatches(0.5), "size: 0.5 is not a whole number"),
    "gamma above 1": (fresh, compute(1.01, 0.9), "gamma: 1.01 must be 0 to 1"),
    "gamma nan": (fresh, compute(nan, 0.9), "gamma: nan must be 0 to 1"),
    "gamma text": (fresh, compute("much", 0.9), "gamma: 'much' is not a number"),
    "lambda below 0": (fresh, compute(0.9, -0.1), "gae_lambda: -0.1 must be 0 to 1"),
    "state shape": (lambda: fresh(1), step(state=(0.0, 0.0)), "state: shape (2,) at episode 1, step 1, but (3,) at"),
    "state nested": (lambda: fresh(1), step(state={"x": 1}), "state: missing at episode 1, step 1"),
    "state text": (lambda: fresh(1), step(state="left"), "state: <U4 at episode 1, step 1, but only numbers"),
    "state ragged": (lambda: fresh(1), step(state=[[1], [1, 2]]), "state: not an array at episode 1, step 1"),
    "action shape": (lambda: fresh(0), step(action=[0, 1]), "action: shape (2,) at episode 1, step 0, but () at"),
    "no log_prob": (lambda: fresh(1), step(log_prob=None), "log_prob: missing at episode 1, step 1"),
    "log_prob nan": (lambda: fresh(1), step(log_prob=nan), "log_prob: nan at episode 1, step 1"),
    "a mask": (lambda: fresh(1), step(mask=[True]), "mask: given at episode 1, step 1, but the steps before do not"),
    "an extra": (lambda: fresh(1), step(mu=0.0), "extras['mu']: given at episode 1, step 1"),
    "reward nan": (lambda: fresh(2), step(reward=nan), "reward: nan at episode 1, step 2, but it must be finite"),
    "reward shape": (lambda: fresh(1), step(reward=[1.0]), "reward: shape (1,) at episode 1, step 1, but one number"),
    "reward none": (lambda: fresh(1), step(reward=None), "reward: missing at episode 1, step 1"),
    "reward dict": (lambda: fresh(1), step(reward={"a": 1.0}), "reward: missing at episode 1, step 1"),
    "value inf": (lambda: fresh(1), step(value=inf), "value: inf at episode 1, step 1"),
    "final nan": (lambda: fresh(1), finish(nan), "final_value: nan at the end of episode 1"),
    "final shape": (lambda: fresh(1), finish([1.0]), "final_value: shape (1,) at the end of episode 1"),
    "final dict": (lambda: fresh(1), finish({"a": 1.0}), "final_value: must be a number"),
    "whole length": (fresh, whole(actions=(0,)), "action: 1 steps, but reward has 2"),
    "whole values": (fresh, whole(values=(0.0,) * 3), "value: 3 steps, but reward has 2"),
    "whole empty": (fresh, whole((), (), (), (), ()), "add_episode: episode 1 has no steps"),
    "whole scalar": (fresh, whole(states=0.0), "state: has no axis of steps"),
    "whole nan": (fresh, whole(rewards=np.array([1.0, nan])), "reward: nan at episode 1, step 1"),
    "whole nan list": (fresh, whole(values=(0.0, nan)), "value: nan at episode 1, step 1"),
    "whole ragged": (fresh, whole(states=((0.0,) * 3, (0.0,))), "state: shape (1,) at episode 1, step 1, but (3,)"),
    "whole shape": (fresh, whole(states=np.zeros((2, 4))), "state: shape (4,) at episode 1, step 0, but (3,)"),
    "whole final": (fresh, whole(final_value=nan), "final_value: nan at the end of episode 1"),
    "seed": (lambda: computed_buffer(), lambda b: b.create_minibatches(1, seed=-1), "seed: -1 is neither"),
}


def computed_buffer():
    buffer = fresh()
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    return buffer


@pytest.mark.parametrize(("make", "act", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_one_clear_line_and_changes_nothing(make, act, message):
    buffer = make()
    before = (len(buffer), buffer.num_episodes, buffer.stats())
    with pytest.raises(TrajectoryError, match=re.escape(message)) as caught:
        act(buffer)
    assert isinstance(caught.value, RegimenError) and isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert (len(buffer), buffer.num_episodes, buffer.stats()) == before


COMPONENTS = {
    "missing": (({"a": 1.0, "b": 1.0}, 0.0), ({"a": 1.0}, 0.0), "reward['b']: missing at episode 0, step 1"),
    "new": (({"a": 1.0}, 0.0), ({"a": 1.0, "c": 1.0}, 0.0), "reward['c']: given at episode 0, step 1"),
    "value missing": (({"a": 1.0}, {"a": 0.0}), ({"a": 1.0}, {}), "value['a']: missing at episode 0, step 1"),
    "value differs": (None, ({"a": 1.0, "b": 1.0}, {"a": 0.0}), "value['b']: missing, but reward has this component"),
    "value more": (None, ({"a": 1.0}, {"a": 0.0, "z": 0.0}), "value['z']: given, but reward does not have this"),
    "value alone": (None, (1.0, {"a": 0.0}), "value: by component, but reward is a number"),
    "reserved": (None, ({"a": 1.0, "total": 1.0}, 0.0), "reward['total']: 'total' is the sum of all components"),
    "none": (None, ({}, 0.0), "reward: must be a number, or a dict from component to number"),
    "deep": (None, ({"a": {"b": 1.0}}, 0.0), "reward: must be a number, or a dict from component to number"),
    "nan": (({"a": 1.0}, 0.0), ({"a": nan}, 0.0), "reward['a']: nan at episode 0, step 1"),
}


@pytest.mark.parametrize(("first", "second", "message"), COMPONENTS.values(), ids=COMPONENTS)
@pytest.mark.parametrize("form", ["steps", "list"])
def test_components_must_agree(first, second, message, form):
    buffer = TrajectoryBuffer()
    pairs = [pair for pair in (first, second) if pair is not None]
    with pytest.raises(TrajectoryError, match=re.escape(message)):
        if form == "list":
            rewards, values = zip(*pairs)
            buffer.add_episode([0] * len(pairs), [0] * len(pairs), rewards, values)
        else:
            buffer.start_episode()
            for reward, value in pairs:
                buffer.add_step(0, 0, reward, value)
    assert len(buffer) == (0 if form == "list" else len(pairs) - 1)


@pytest.mark.parametrize("add", ["step", "episode"])
def test_more_steps_make_the_advantages_out_of_date(add):
    buffer = fresh()
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    assert len(buffer.create_minibatches(2)) == 1
    if add == "step":
        buffer.start_episode()
        assert len(buffer.create_minibatches(2)) == 1  # nothing was added yet
        buffer.add_step(np.zeros(3), 0, 1.0, 0.0, log_prob=-1.0)
    else:
        whole()(buffer)
    with pytest.raises(TrajectoryError, match="steps were added, the advantages are out of date: call compute"):
        buffer.create_minibatches(2)
    if add == "step":
        buffer.finish_episode(terminated=True)
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    assert len(buffer.rows()) == len(buffer)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone = [body for body in PYTHON if "PPO" not in body]  # the loop with PPO is examples/own_loop.py
    assert len(alone) >= 3
    for body in alone:
        exec(compile(body, PAGE.name, "exec"), {})


def test_the_page_shows_the_loop_of_the_example():
    """Line by line: what the page shows of the loop is in the example."""
    example = (PAGE.parents[1] / "examples" / "own_loop.py").read_text()
    shown = [body for body in PYTHON if "PPO" in body]
    lines = {line.strip() for line in example.splitlines()}
    assert shown and [line for line in shown[0].splitlines() if line.strip() not in lines] == []


def test_the_errors_on_the_page_are_those_raised():
    text = re.search(r"^```text\n(TrajectoryError.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert text is not None
    raised = []
    for make, act, _ in MISUSE.values():
        with pytest.raises(TrajectoryError) as caught:
            act(make())
        raised.append(f"TrajectoryError: {caught.value}")
    assert [line for line in text.group(1).splitlines() if line not in raised] == []
