"""Functions and methods that are called as another trainer's say the line to write."""

import inspect
import re

import pytest

import regimen
from regimen.config import calls, names
from regimen.errors import ArgumentError

BUFFER = regimen.TrajectoryBuffer()


@pytest.fixture(scope="module")
def trainer():
    return regimen.Trainer("pendulum", algo="sac")


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("train", {"total_timesteps": 50_000}, "`regimen.Trainer(env, total_steps=50000)`"),
        ("train", {"batch_size": 64}, "`regimen.Trainer(env, algo={'batch_size': 64})`"),  # a setting of SAC
        ("train", {"eval_freq": 1000}, "`regimen.Trainer(env, eval={'every': ...})` (`5000 steps` over all"),
        ("train", {"progress_bar": True}, "here it is nothing to set (progress is shown"),
        ("train", {"call": print}, "no argument 'call'; did you mean 'callback'?"),
        ("updates", {"timesteps": 10}, "`regimen.Trainer(env, total_steps=10)`"),
        (
            "evaluate",
            {"n_eval_episodes": 5},
            "no argument 'n_eval_episodes'; here it is num_episodes=5",
        ),
        (
            "evaluate",
            {"episodes": 5, "render": True},
            "no argument 'render'; here it is `regimen replay RUN`",
        ),
        ("save", {"flavour": 1}, "Trainer.save has no argument 'flavour'; it takes path"),
    ],
)
def test_methods_of_a_trainer(trainer, method, given, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        getattr(trainer, method)(**given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: regimen.evaluate("x", n_eval_episodes=5), "argument 'n_eval_episodes'; here it is episodes=5"),
        (lambda: regimen.evaluate("x", deterministic=True), "nothing to set: policies are played greedily"),
        (lambda: regimen.evaluate_in("x", "y", n_episodes=3), "here it is episodes=3"),
        (lambda: regimen.leaderboard(model="x"), "here it is target='x'"),
        (lambda: regimen.resume("x", total_timesteps=9), "here it is total_steps=9"),
        (lambda: regimen.load_policy("x", env=BUFFER), "a policy knows its spaces"),
        (lambda: regimen.compare(paths=["x"]), "regimen.compare has no argument 'paths'; it takes runs, by"),
        (lambda: regimen.collect("cartpole", "x", n_episodes=3), "regimen.collect has no argument 'n_ep"),
        (lambda: regimen.check_env("cartpole", stepz=3), "did you mean 'steps'?"),
        (lambda: regimen.TrajectoryBuffer(buffer_size=64), "TrajectoryBuffer has no argument 'buffer_size'; here"),
        (lambda: BUFFER.compute_returns_and_advantages(0.9, lam=0.95), "here it is gae_lambda=0.95"),
        (lambda: BUFFER.create_minibatches(batch_size=8), "here it is size=8"),
        (lambda: BUFFER.finish_episode(last_value=BUFFER), "here it is final_value=..."),
    ],
)  # fmt: skip
def test_functions_and_buffers(call, words):
    with pytest.raises(TypeError, match=re.escape(words)) as error:
        call()
    assert isinstance(error.value, regimen.errors.RegimenError)


def test_what_is_not_said_of_arguments_stays_as_it_was():
    """Missing arguments, and a TypeError from inside, are Python's; the signature is the function's own."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'target'") as error:
        regimen.evaluate()
    assert not isinstance(error.value, ArgumentError)
    assert list(inspect.signature(regimen.evaluate).parameters)[:3] == ["target", "policy", "episodes"]

    @calls.answered
    def inner(x):
        return len(x)

    assert inner(x=[1]) == 1
    with pytest.raises(TypeError, match="has no len"):
        inner(3)


def test_every_argument_that_is_meant_is_one_of_the_api():
    """No word of the table is an argument that nothing has, and none is answered by itself."""
    functions = [getattr(regimen, name) for name in regimen.__all__ if inspect.isfunction(getattr(regimen, name))]
    for cls in (regimen.Trainer, regimen.Policy, regimen.TrajectoryBuffer):
        functions += [f for _, f in inspect.getmembers(cls, inspect.isfunction)]
    taken = {name for f in functions for name in inspect.signature(f).parameters}
    for theirs, ours in names.load_answers()["argument"].items():
        assert set(ours.split()) <= taken and theirs not in ours.split(), theirs


def test_runs_are_compared_by_the_name_of_the_argument(tmp_path):
    with pytest.raises(regimen.errors.RegimenError, match="is not a run directory"):
        regimen.compare(runs=[tmp_path])
