"""Component rewards against numpy and plain loops; the weights' meta-gradient against finite differences."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen import rewards
from regimen.cli.main import main
from regimen.config.algorithms.ppo import RewardConfig
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.rewards import Weighting, parse_task, parse_weights
from regimen.schedule import pack
from regimen.types import Batch

NAMES = ("goal", "effort", "safety")


# --- what is typed ---------------------------------------------------------------------------------------------------


def test_weights_and_task_are_read():
    assert parse_weights("", NAMES) == (1.0, 1.0, 1.0)
    assert parse_weights("effort=0.2, goal=3", NAMES) == parse_weights("goal=3 effort=2e-1", NAMES) == (3.0, 0.2, 1.0)
    assert parse_weights("goal=0 effort=0", NAMES) == (0.0, 0.0, 1.0)
    assert parse_task("", NAMES) == (1.0, 1.0, 1.0)
    assert parse_task("goal,safety", NAMES) == parse_task("safety goal", NAMES) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaol=1", "algo.reward.weights: the reward has no component 'gaol'; did you mean 'goal'"),
        ("fuel=1", "no component 'fuel'; choose from: effort, goal, safety"),
        ("goal=-1", "'goal=-1' is not name=weight with a weight of at least 0"),
        ("goal", "'goal' is not name=weight"),
        ("goal=", "'goal=' is not name=weight"),
        ("goal=high", "'goal=high' is not name=weight"),
        ("goal=nan", "'goal=nan' is not name=weight"),
        ("goal=inf", "'goal=inf' is not name=weight"),
        ("goal=0 effort=0 safety=0", "every component has weight 0"),
    ],
)
def test_bad_weights_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_weights(text, NAMES)


def test_a_bad_task_is_named():
    with pytest.raises(ConfigError, match=r"algo.reward.task: the reward has no component 'saftey'; did you mean 'saf"):
        parse_task("goal saftey", NAMES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algo.reward.weights", "foo=1"], "algo.reward.weights: the reward has no component 'foo'; choose from: "),
        (["--algo.reward.weights", "progress=-1"], "'progress=-1' is not name=weight with a weight of at least 0"),
        (["--algo.reward.task", "progres"], "has no component 'progres'; did you mean 'progress'"),
        (["--algo.reward.weighting", "learnt"], "'learnt' is not one of fixed, uniform, learned"),
        (["--algo.reward.weight-lr", "-1"], "algo.reward.weight_lr: -1 is out of range"),
    ],
    ids=lambda x: x[1] if isinstance(x, list) else "",
)
def test_the_command_line_refuses_them_in_one_line(tmp_path, capsys, flags, message):
    out = tmp_path / "run"
    assert main(["train", "probe/components", "--no-track", "--out", str(out), *flags]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("regimen: error: ") and message in error, error
    assert not out.exists()


def test_the_page_shows_every_option_and_its_default():
    text = (Path(__file__).parents[2] / "docs" / "algorithms" / "rewards.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (\S*) *\|", text.partition("## Options")[2].partition("## What is logged")[0], re.M
    )
    assert dict(rows) == {f.name: str(f.default).lower() for f in fields(RewardConfig)}


# --- scale across episodes -------------------------------------------------------------------------------------------

T, B, K, DECAY = 9, 3, 2, 0.9


def batch_of(rng, length=None, done=0.3, rows=T):
    """A batch of numpy rewards and flags; without a length every row is valid."""
    ended = rng.random((rows, B)) < done
    valid = np.ones((rows, B), bool)
    if length is not None:  # environments stop at a row of their own, as where each runs its share of episodes
        valid = np.arange(rows)[:, None] < rng.integers(2, length + 1, B)
    zeros = np.zeros((rows, B, 1), np.float32)
    return Batch(
        obs=zeros,
        action=zeros,
        reward=rng.normal(size=(rows, B, K)).astype(np.float32),
        terminated=jnp.asarray(ended),
        truncated=jnp.asarray(~ended & (rng.random((rows, B)) < 0.1)),
        next_obs=zeros,
        valid=jnp.asarray(valid),
        extras={},
        length=None if length is None else jnp.int32(length),
    )


def returns_by_hand(batch, start):
    g, out = np.array(start, np.float64), np.zeros((len(batch.reward), B, K))
    for t in range(len(out)):
        for b in range(B):
            if batch.valid[t, b]:
                g[b] = DECAY * g[b] + batch.reward[t, b]
                out[t, b] = g[b]
                if batch.terminated[t, b] or batch.truncated[t, b]:
                    g[b] = 0.0
    return out, g


running_returns = jax.jit(rewards.running_returns)


def test_running_returns_go_on_from_batch_to_batch():
    rng = np.random.default_rng(0)
    whole = batch_of(rng, rows=2 * T)
    start = rng.normal(size=(B, K)).astype(np.float32)
    expected, last = returns_by_hand(whole, start)
    carry = start
    for half in (slice(0, T), slice(T, 2 * T)):
        batch = jax.tree.map(lambda x, half=half: x[half], whole)
        got, carry = running_returns(batch.reward, carry, batch, DECAY)
        np.testing.assert_allclose(got, expected[half], atol=1e-5)
    np.testing.assert_allclose(carry, last, atol=1e-5)


def test_running_returns_of_whole_episodes_start_afresh_and_skip_what_is_not_valid():
    rng = np.random.default_rng(1)
    batch = batch_of(rng, length=T)
    assert not np.asarray(batch.valid).all()
    expected, last = returns_by_hand(batch, np.zeros((B, K)))
    got, carry = running_returns(batch.reward, jnp.full((B, K), 50.0), batch, DECAY)
    valid = np.asarray(batch.valid)
    np.testing.assert_allclose(np.asarray(got)[valid], expected[valid], atol=1e-5)
    np.testing.assert_allclose(carry, last, atol=1e-5)


def stats(sigma, count=100.0):
    sigma = jnp.asarray(sigma, jnp.float32)
    return RunningStats(jnp.float32(count), jnp.zeros_like(sigma), jnp.square(sigma) * count)


@pytest.mark.parametrize(
    ("sigma", "factors"),
    [
        ([1.0, 2.0, 4.0], [2.0, 1.0, 0.5]),  # the median component is the reference
        ([1.0, 3.0], [2.0, 2 / 3]),  # of two, their mean
        ([1e-3, 1.0, 1e3], [10.0, 1.0, 0.1]),  # never beyond a factor of ten
        ([1.0, 0.0, 4.0], [2.5, 1.0, 0.625]),  # what never varied is left alone and no reference
        ([0.0, 0.0], [1.0, 1.0]),
        ([5.0, 0.0], [1.0, 1.0]),
    ],
)
def test_scale_factors(sigma, factors):
    np.testing.assert_allclose(rewards.scale_factors(stats(sigma), jnp.bool_(True)), factors, rtol=1e-5)
    assert rewards.scale_factors(stats(sigma), jnp.bool_(False)).tolist() == [1.0] * len(sigma), "the warm-up"


def test_scale_factors_before_any_data_are_one():
    assert rewards.scale_factors(RunningStats.zero((3,)), jnp.bool_(True)).tolist() == [1.0, 1.0, 1.0]


# --- per batch, per episode ------------------------------------------------------------------------------------------


def by_numpy(x, method):
    """One component's values, standardised."""
    std, width = x.std(), x.max() - x.min()
    z = (x - x.mean()) / std if width > 0 else 0 * x
    return {"zscore": z, "adaptive": z, "minmax": (x - x.min()) / width if width > 0 else 0 * x}[method]


@pytest.mark.parametrize("method", ["zscore", "minmax", "adaptive"])
def test_standardize_over_the_valid_rows_of_a_batch(method):
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(T, B, K)) * [1.0, 100.0] + [0.0, 7.0]).astype(np.float32)
    valid = rng.random((T, B)) < 0.6
    x[~valid] = 1e6
    got = np.asarray(rewards.standardize(jnp.asarray(x), jnp.asarray(valid), method))
    for k in range(K):
        np.testing.assert_allclose(got[valid][:, k], by_numpy(x[valid][:, k].astype(np.float64), method), atol=1e-4)
    assert not got[~valid].any()


@pytest.mark.parametrize("method", ["zscore", "minmax", "adaptive"])
@pytest.mark.parametrize("value", [0.0, 0.1, -0.3, 100.3, 7.7e5])
def test_a_constant_becomes_zeros(method, value):
    """Also where its mean cannot be represented, so that rounding looks like a deviation."""
    x = jnp.full((50, 8, 1), value)
    assert not np.asarray(rewards.standardize(x, jnp.ones((50, 8), bool), method)).any()


def test_adaptive_takes_the_range_where_the_deviation_is_numerically_zero():
    x = jnp.zeros((100, 20, 1)).at[3, 3, 0].set(2e-8)  # the deviation is 4e-10
    got = np.asarray(rewards.standardize(x, jnp.ones((100, 20), bool), "adaptive"))
    assert got[3, 3, 0] == 0.5 and (np.delete(got.ravel(), 63) == -0.5).all()
    assert not np.asarray(rewards.standardize(x, jnp.ones((100, 20), bool), "zscore")).any()


def episodes_of(batch):
    """(environment, rows) of every episode, or part of one, in a batch."""
    found = []
    for b in range(B):
        rows = []
        for t in np.flatnonzero(np.asarray(batch.valid)[:, b]):
            rows.append(t)
            if batch.terminated[t, b] or batch.truncated[t, b]:
                found.append((b, rows))
                rows = []
        found += [(b, rows)] if rows else []
    return found


@pytest.mark.parametrize("method", ["zscore", "minmax", "adaptive"])
@pytest.mark.parametrize("length", [None, 24], ids=["steps", "episodes"])
def test_standardize_within_episodes(method, length):
    """Several episodes in a column, each on its own; those of fewer than 3 steps are left alone."""
    batch = batch_of(np.random.default_rng(3), length, done=0.25, rows=24)
    got = np.asarray(rewards.standardize_episodes(jnp.asarray(batch.reward), batch, method))
    episodes = episodes_of(batch)
    assert {len(rows) < 3 for _, rows in episodes} == {True, False} and len(episodes) > 2 * B
    for b, rows in episodes:
        r = np.asarray(batch.reward)[rows, b]
        expected = r if len(rows) < 3 else np.stack([by_numpy(r[:, k], method) for k in range(K)], axis=-1)
        np.testing.assert_allclose(got[rows, b], expected, atol=1e-4)
    assert not got[~np.asarray(batch.valid)].any()


def test_z_scores_within_episodes_hide_which_episode_was_good():
    """The documented defect: an episode that returns 1 and one that returns 100 become the same."""
    zeros = jnp.zeros((4, 2))
    reward = jnp.asarray([[0.0, 0.25, 0.25, 0.5], [0.0, 25.0, 25.0, 50.0]]).T[..., None]  # [4, 2, 1]
    ends = zeros.astype(bool).at[-1].set(True)
    batch = Batch(zeros, zeros, reward, ends, zeros.astype(bool), zeros, jnp.ones((4, 2), bool), {})
    assert reward.sum(0)[:, 0].tolist() == [1.0, 100.0]
    got = np.asarray(rewards.standardize_episodes(reward, batch, "zscore"))
    np.testing.assert_allclose(got[:, 0], got[:, 1], atol=1e-5)
    np.testing.assert_allclose(got.sum(0), 0.0, atol=1e-5)
    over_the_batch = np.asarray(rewards.standardize(reward, batch.valid, "zscore")).sum(0)[:, 0]
    assert over_the_batch[1] > over_the_batch[0] + 1.0, "over the batch they stay apart"


# --- weights ---------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """What `alignments` reads of a set of rows."""

    obs: np.ndarray  # [W, D]
    action: np.ndarray  # [W]
    advantage: np.ndarray  # [W, K]
    task: np.ndarray  # [W]


class Policy:
    """A softmax policy with a hidden layer in float64."""

    def __init__(self, rng, obs=3, hidden=4, actions=3):
        self.shapes = [(obs, hidden), (hidden, actions)]
        self.params = jnp.concatenate([jnp.asarray(rng.normal(size=a * b)) for a, b in self.shapes])

    def log_prob(self, params, rows):
        (a, b), (_, c) = self.shapes
        hidden = jnp.tanh(rows.obs @ params[: a * b].reshape(a, b))
        return jax.nn.log_softmax(hidden @ params[a * b :].reshape(b, c))[jnp.arange(len(rows.obs)), rows.action]

    def rows(self, rng, n):
        advantage = rng.normal(size=(n, 3)) * [1.0, 3.0, 0.3] + [2.0, -1.0, 0.5]
        return Rows(rng.normal(size=(n, 3)), rng.integers(0, 3, n), advantage, rng.normal(size=n) + 4.0)

    def after(self, rows, advantage, step):
        """Parameters behind one policy-gradient step on PPO's surrogate."""
        old = self.log_prob(self.params, rows)

        def surrogate(params):
            return jnp.mean(jnp.exp(self.log_prob(params, rows) - old) * advantage)

        return self.params + step * jax.grad(surrogate)(self.params)

    def held_out(self, params, rows):
        """The task's surrogate, with its advantage centred."""
        ratio = jnp.exp(self.log_prob(params, rows) - self.log_prob(self.params, rows))
        return jnp.mean(ratio * (rows.task - rows.task.mean()))


def test_alignment_is_the_effect_of_a_step_on_the_held_out_task():
    """d_k against a real inner step along component k; central differences in float64, so that they agree to 1e-6."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(4)
        policy, step = Policy(rng), 1e-4
        train, held = policy.rows(rng, 40), policy.rows(rng, 30)
        d = np.asarray(rewards.alignments(policy.log_prob, policy.params, train, held))
        for k in range(3):
            centred = train.advantage[:, k] - train.advantage[:, k].mean()
            ahead, back = (policy.held_out(policy.after(train, centred, s), held) for s in (step, -step))
            assert float(ahead - back) / (2 * step) == pytest.approx(d[k], rel=1e-6)
        offset = replace(train, advantage=train.advantage + np.array([50.0, 0.0, -7.0]))
        shifted = rewards.alignments(policy.log_prob, policy.params, offset, replace(held, task=held.task + 20.0))
        np.testing.assert_allclose(shifted, d, rtol=1e-9)  # what a critic has not learned yet does not count


def test_the_objective_and_its_gradient_are_those_of_a_normalised_step():
    """-M(w), and its derivative by every parameter of the weights, against the real thing: a step on the combined,
    normalised advantage, and the held-out surrogate behind it. Agreement to 1e-5."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(5)
        policy, step, eps = Policy(rng), 1e-4, 1e-4
        train, held = policy.rows(rng, 40), policy.rows(rng, 30)
        d = rewards.alignments(policy.log_prob, policy.params, train, held)
        magnitude, covariance = rewards.moments(jnp.asarray(train.advantage)[None], jnp.ones((1, 40), bool))
        weighting = Weighting(np.ones(len(NAMES)), np.ones(len(NAMES)), attention=True)
        params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), weighting.init()["params"])

        @jax.jit
        def real(params):
            combined = train.advantage @ weighting.weights(params, magnitude)
            normalised = (combined - combined.mean()) / combined.std()
            ahead, back = (policy.held_out(policy.after(train, normalised, s), held) for s in (step, -step))
            return -(ahead - back) / (2 * step)

        def objective(params):
            return weighting.objective(params, magnitude, d, covariance, 0.0)

        assert float(objective(params)) == pytest.approx(float(real(params)), rel=1e-5)
        gradient = jax.grad(objective)(params)
        for name, g in gradient.items():
            assert np.abs(g).min() > 1e-6, f"{name} gets no gradient"
            for index in np.ndindex(g.shape):
                ahead, back = (real(params | {name: params[name].at[index].add(s)}) for s in (eps, -eps))
                assert float(ahead - back) / (2 * eps) == pytest.approx(float(g[index]), rel=1e-4, abs=1e-6)


def learned(attention=True, weights="", components=NAMES):
    weighting = Weighting(parse_weights(weights, components), parse_task("", components), attention)
    return weighting, weighting.init(), jax.jit(weighting.update)


EVEN, SLOW = np.full(3, 1 / 3, np.float32), (0.01, 0.001)


def repeat(update, state, n, *args):
    for _ in range(n):
        state = update(state, *args)
    return state


@pytest.mark.parametrize("attention", [True, False])
def test_weights_move_to_what_helps_and_stay_a_distribution(attention):
    weighting, state, update = learned(attention)
    assert weighting.weights(state["params"], EVEN).tolist() == pytest.approx([1 / 3] * 3)
    before = np.asarray(weighting.weights(state["params"], EVEN))
    for _ in range(50):
        state = update(state, EVEN, jnp.asarray([1.0, 0.2, -1.0]), jnp.eye(3), *SLOW)
        w = np.asarray(weighting.weights(state["params"], EVEN))
        assert w.sum() == pytest.approx(1.0, abs=1e-5) and (w > 0).all()
        assert w[0] > before[0] and w[2] < before[2]
        before = w
    assert w[0] > 0.45 > 0.25 > w[2]


def test_the_pull_brings_weights_back_where_nothing_is_learned():
    weighting, state, update = learned(weights="goal=2 safety=0.5")
    base = np.array([2.0, 1.0, 0.5]) / 3.5

    def distance(state):
        return float(np.abs(weighting.weights(state["params"], EVEN) - base).max())

    assert distance(state) < 1e-6
    away = state | {"params": state["params"] | {"beta": jnp.asarray([-1.0, 0.0, 1.0])}}
    assert distance(away) > 0.4
    assert distance(repeat(update, away, 30, EVEN, jnp.zeros(3), jnp.eye(3), *SLOW)) < 0.8 * distance(away)
    assert distance(repeat(update, away, 300, EVEN, jnp.zeros(3), jnp.eye(3), *SLOW)) < 0.02
    free = repeat(update, away, 30, EVEN, jnp.zeros(3), jnp.eye(3), 0.01, 0.0)
    assert distance(free) == distance(away)
    helped = repeat(update, away, 30, EVEN, jnp.asarray([-1.0, 0.0, 1.0]), jnp.eye(3), 0.01, 100.0)
    assert distance(helped) < 0.9 * distance(away), "a heavy pull wins over the task"


def test_opposed_components_can_be_told_apart():
    """Of A and -A the normalised combination is only a sign: M alone has no slope."""
    weighting, state, update = learned(components=("task", "bait"))
    even, d, opposed = jnp.full(2, 0.5), jnp.asarray([1.0, -1.0]), jnp.asarray([[1.0, -1.0], [-1.0, 1.0]])
    aside = state["params"] | {"beta": jnp.asarray([0.1, -0.1])}
    flat = jax.grad(weighting.objective)(aside, even, d, opposed, 0.0)
    assert float(jnp.abs(flat["beta"]).max()) < 1e-5
    for start in (state["params"], aside, state["params"] | {"beta": jnp.asarray([-0.1, 0.1])}):
        moved = repeat(update, state | {"params": start}, 20, even, d, opposed, *SLOW)
        assert weighting.weights(moved["params"], even)[0] > weighting.weights(start, even)[0] + 0.05


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_an_alignment_that_is_not_finite_changes_nothing(bad):
    _, state, update = learned()
    state = repeat(update, state, 3, EVEN, jnp.asarray([1.0, 0.2, -1.0]), jnp.eye(3), *SLOW)
    after = update(state, EVEN, jnp.asarray([0.0, bad, 1.0]), jnp.eye(3), *SLOW)
    jax.tree.map(np.testing.assert_array_equal, state, after)


def test_without_attention_there_are_no_parameters_of_it():
    assert set(learned(attention=False)[1]["params"]) == {"beta"}
    weighting, state, _ = learned()
    assert {k: v.shape for k, v in state["params"].items()} == {"beta": (3,), "attention": (3, 3), "bias": (3,)}
    tilted = state["params"] | {"attention": jnp.eye(3)}
    w = weighting.weights(tilted, jnp.asarray([0.7, 0.2, 0.1]))
    assert w[0] > w[1] > w[2], "magnitudes speak through it"


def test_moments_are_of_valid_rows():
    rng = np.random.default_rng(6)
    x, valid = rng.normal(size=(T, B, 3)) * [1.0, 5.0, 0.2] + 1.0, rng.random((T, B)) < 0.6
    x[~valid] = 1e4
    magnitude, covariance = rewards.moments(jnp.asarray(x, jnp.float32), jnp.asarray(valid))
    mean = np.abs(x[valid]).mean(0)
    np.testing.assert_allclose(magnitude, mean / mean.sum(), rtol=1e-5)
    np.testing.assert_allclose(covariance, np.cov(x[valid].T, bias=True), rtol=1e-4)


@pytest.mark.parametrize("count", [2, 3, 9, 40])
def test_the_two_halves_share_no_row_and_no_padding(count):
    """Of 40 rows the first `count` (in an order of their own) are valid."""
    valid = np.zeros(40, bool)
    valid[np.random.default_rng(count).permutation(40)[:count]] = True
    rows = {"number": jnp.arange(40.0).reshape(10, 4)}
    packed = pack(rows, jnp.asarray(valid).reshape(10, 4), all_valid=count == 40)
    seen = set()
    for seed in range(5):
        train, held = (set(x["number"].tolist()) for x in rewards.two_halves(packed, jax.random.key(seed)))
        assert not train & held and (train | held) <= set(np.flatnonzero(valid).tolist())
        assert len(train) == len(held) == count // 2
        seen.add((tuple(sorted(train)), tuple(sorted(held))))
    assert len(seen) > 1 or count == 2, "another key, other halves"
