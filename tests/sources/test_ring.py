"""The replay against a slow one in plain Python: what counts, what is sampled, and returns over several steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym

from regimen.sources.replay import Replay
from regimen.types import Batch

GAMMA, T = 0.9, 3
SPACE = gym.Dict({"id": gym.Box(0, np.inf, (1,), np.float32), "pixels": gym.Box(0, 255, (2,), np.uint8)})


class Slow:
    """Rows of each column in the order in which they came, the oldest forgotten."""

    def __init__(self, capacity, columns):
        self.capacity, self.columns = capacity, [[] for _ in range(columns)]

    def insert(self, batch, first):
        for b in range(batch.valid.shape[1]):
            for t in range(batch.valid.shape[0]):
                row = {
                    "id": float(batch.obs["id"][t, b, 0]),
                    "next": float(batch.next_obs["id"][t, b, 0]),
                    "reward": float(batch.reward[t, b].sum()),
                    "terminated": bool(batch.terminated[t, b]),
                    "truncated": bool(batch.truncated[t, b]),
                    "valid": bool(batch.valid[t, b]),
                }
                self.columns[first + b].append(row)
            del self.columns[first + b][: -self.capacity]

    def transitions(self, n_step):
        """id -> (return, discount of the bootstrap, id of the successor) of every row that may be sampled."""
        out = {}
        for rows in self.columns:
            for i, first in enumerate(rows):
                if not first["valid"]:
                    continue
                total, scale, j = 0.0, 1.0, i
                while True:
                    row = rows[j]
                    total, scale = total + scale * row["reward"], scale * GAMMA
                    over = row["terminated"] or row["truncated"] or j + 1 == len(rows)
                    if over or j - i + 1 == n_step or not rows[j + 1]["valid"]:
                        break
                    j += 1
                out[first["id"]] = (total, 0.0 if rows[j]["terminated"] else scale, rows[j]["next"])
        return out


def batches(rng, columns, number, workers=1, dead=0.0):
    """Rollouts in which every observation has a number of its own; a successor that was reset away is its negative."""
    fresh = iter(range(1, 1_000_000))
    current = [[next(fresh) for _ in range(columns // workers)] for _ in range(workers)]
    for _ in range(number):
        worker = int(rng.integers(workers)) if workers > 1 else 0
        shape = (T, columns // workers)
        ids, after = np.zeros((*shape, 1), np.float32), np.zeros((*shape, 1), np.float32)
        terminated, truncated = rng.random(shape) < 0.2, rng.random(shape) < 0.2
        truncated &= ~terminated
        for t in range(T):
            for b in range(shape[1]):
                ids[t, b] = current[worker][b]
                current[worker][b] = next(fresh)
                over = terminated[t, b] or truncated[t, b]
                after[t, b] = -ids[t, b] if over else current[worker][b]
        yield Batch(
            obs={"id": ids, "pixels": np.repeat(ids.astype(np.uint8), 2, -1)},
            action=ids[..., 0].astype(np.int32),
            reward=rng.normal(size=(*shape, 2)).astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            next_obs={"id": after, "pixels": np.repeat(np.abs(after).astype(np.uint8), 2, -1)},
            valid=rng.random(shape) >= dead,
            extras={},
            worker=jnp.int32(worker) if workers > 1 else None,
        )


@pytest.mark.parametrize(("n_step", "workers", "dead"), [(1, 1, 0.0), (4, 1, 0.0), (4, 1, 0.4), (3, 2, 0.2)])
def test_samples_are_those_of_a_slow_replay(n_step, workers, dead):
    """Before the ring is full, when it is, and after it has gone round: every transition that may be sampled is, each
    with the return over what there is of its episode."""
    columns, rng = 4, np.random.default_rng(0)
    replay = Replay(size=40, rows=T, columns=columns, workers=workers)
    assert replay.capacity == 12
    rows, ring, slow = replay.zeros(SPACE, np.zeros((), np.int32)), replay.ring(), Slow(12, columns)
    assert rows.obs["pixels"].dtype == np.uint8 and rows.mask is None
    insert = jax.jit(replay.insert)
    sample = jax.jit(partial(replay.sample, size=2000, n_step=n_step, gamma=GAMMA))
    for i, batch in enumerate(batches(rng, columns, 11, workers, dead)):
        ring, rows = insert(ring, rows, batch)
        slow.insert(batch, (0 if batch.worker is None else int(batch.worker)) * columns // workers)
        if i not in (0, 3, 4, 10):
            continue
        got = jax.tree.map(np.asarray, sample(ring, rows, jax.random.key(i)))
        expected = slow.transitions(n_step)
        seen = {}
        for j in np.flatnonzero(got.weight):
            seen[float(got.obs["id"][j, 0])] = (got.reward[j], got.discount[j], got.next_obs["id"][j, 0])
            assert got.action[j] == got.obs["id"][j, 0] and got.obs["pixels"][j, 0] == got.action[j] % 256
        assert seen.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(seen[name], values, rtol=1e-5, atol=1e-5)
        assert got.weight.mean() > (0.9 if dead else 0.999)


def test_sampling_is_uniform_over_the_rows_of_unequal_workers():
    replay = Replay(size=10_000, rows=T, columns=4, workers=2)
    rows, ring = replay.zeros(SPACE, np.zeros((), np.int32)), replay.ring()
    rng, kept = np.random.default_rng(1), 0
    for batch in batches(rng, 4, 12, workers=2, dead=0.3):
        ring, rows = replay.insert(ring, rows, batch)
        kept += int(batch.valid.sum())
    assert ring.count[0] != ring.count[1]
    got = replay.sample(ring, rows, jax.random.key(0), 20_000, 1, GAMMA)
    counts = np.unique(np.asarray(got.obs["id"])[np.asarray(got.weight) > 0], return_counts=True)[1]
    assert len(counts) == kept
    expected = counts.sum() / kept
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < kept + 5 * np.sqrt(2 * kept)  # chi-square, five deviations


def test_a_rollout_that_is_not_counted_is_written_again():
    """What an update that was refused leaves behind the cursor is never sampled."""
    replay = Replay(size=24, rows=T, columns=2)
    first, refused, second = batches(np.random.default_rng(2), 2, 3)
    ring, rows = replay.insert(replay.ring(), replay.zeros(SPACE, np.zeros((), np.int32)), first)
    _, rows = replay.insert(ring, rows, refused)
    got = replay.sample(ring, rows, jax.random.key(0), 500, 3, GAMMA)
    assert set(np.unique(got.action)) == set(np.unique(first.action))
    ring, again = replay.insert(ring, rows, second)
    expected = replay.insert(*replay.insert(replay.ring(), replay.zeros(SPACE, np.zeros((), np.int32)), first), second)
    jax.tree.map(np.testing.assert_array_equal, (ring, again), expected)


@pytest.mark.parametrize("worker", [None, 1])
def test_returns_over_several_steps_end_where_environments_were_started_anew(worker):
    """A resumed run and a replaced worker begin with other episodes: what was not over is cut there, in the columns
    where that is so, and nothing else is: a program may round the same observation in another way."""
    workers = 1 if worker is None else 2
    replay = Replay(size=100 * workers, rows=T, columns=2 * workers, workers=workers)
    rows, ring, first = replay.zeros(SPACE, np.zeros((), np.int32)), replay.ring(), 0 if worker is None else 2
    one, other = batches(np.random.default_rng(6), 2, 2)
    never = np.zeros((T, 2), bool)
    quiet = {"terminated": never, "truncated": never, "worker": None if worker is None else jnp.int32(worker)}
    start = one.obs["id"][0]
    ids = start + 2 * np.arange(4 * T)[:, None, None]  # a column counts in twos from its first number on
    parts = []
    for i in range(3):
        at = slice(i * T, (i + 1) * T)
        blank = np.zeros_like(one.obs["pixels"])
        obs, after = {"id": ids[at], "pixels": blank}, {"id": ids[i * T + 1 : (i + 1) * T + 1], "pixels": blank}
        parts.append(other.replace(obs=obs, next_obs=after, action=np.int32(ids[at, :, 0]), **quiet))
    anew = ids[2 * T : 3 * T] * (1 + 1e-6)  # the first environment goes on, as another program computes it
    anew[:, 1] += 1000  # the second does not go on where it was
    parts[2] = parts[2].replace(obs=parts[2].obs | {"id": np.float32(anew)}, action=np.int32(anew[..., 0] + 0.5))
    for part in parts:
        ring, rows = replay.insert(ring, rows, part)
    expected = np.zeros((3 * T, 2), bool)
    expected[2 * T - 1, 1] = True
    np.testing.assert_array_equal(rows.truncated[: 3 * T, first : first + 2], expected)
    assert rows.truncated.sum() == 1
    got = jax.tree.map(np.asarray, replay.sample(ring, rows, jax.random.key(0), 500, 4, GAMMA))
    steps = {int(a): round(float(np.log(d) / np.log(GAMMA))) for a, d in zip(got.action, got.discount)}
    assert [steps[int(i)] for i in ids[: 3 * T, 0, 0]] == [4, 4, 4, 4, 4, 4, 3, 2, 1]
    assert [steps[int(i)] for i in ids[: 2 * T, 1, 0]] == [4, 4, 4, 3, 2, 1]


def test_masks_are_kept_and_default_to_all():
    replay = Replay(size=6, rows=T, columns=2)
    (batch,) = batches(np.random.default_rng(3), 2, 1)
    rows = replay.zeros(SPACE, np.zeros((), np.int32), options=4)
    _, plain = replay.insert(replay.ring(), rows, batch)
    assert plain.mask[:T].all() and plain.next_mask[:T].all()
    masks = np.random.default_rng(4).random((2, T, 2, 4)) < 0.5
    batch = batch.replace(extras={"mask": masks[0], "next_mask": masks[1]})
    ring, rows = replay.insert(replay.ring(), rows, batch)
    np.testing.assert_array_equal(rows.mask[:T], masks[0])
    got = replay.sample(ring, rows, jax.random.key(0), 50, 1, GAMMA)
    where = {float(batch.obs["id"][t, b, 0]): (t, b) for t in range(T) for b in range(2)}
    for i in range(50):
        at = where[float(got.obs["id"][i, 0])]
        np.testing.assert_array_equal(got.mask[i], masks[0][at])
        np.testing.assert_array_equal(got.next_mask[i], masks[1][at])


def test_bytes_are_those_of_the_arrays():
    replay = Replay(size=1000, rows=7, columns=3)
    action = {"choice": np.zeros((), np.int32), "amount": np.zeros(2, np.float32)}
    rows = replay.zeros(SPACE, action, options=5)
    assert replay.bytes(SPACE, action, 5) == sum(x.nbytes for x in jax.tree.leaves(rows))
    assert replay.capacity == 336 and replay.capacity % 7 == 0
    assert Replay(10**12, 1, 1).bytes(SPACE, action) > 10**13  # nothing is allocated


def test_another_rollout_than_planned_is_refused():
    replay = Replay(size=16, rows=4, columns=2)
    (batch,) = batches(np.random.default_rng(5), 2, 1)
    with pytest.raises(AssertionError, match="planned"):
        replay.insert(replay.ring(), replay.zeros(SPACE, np.zeros((), np.int32)), batch)
