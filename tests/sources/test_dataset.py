"""Minari datasets: what is written is what is read, successors and ends are right, and what cannot be learned from is
named."""

import json
import shutil

import h5py
import jax
import minari
import numpy as np
import pytest
from gymnasium import spaces as gym

from regimen import distributions, spaces
from regimen.config import datasets
from regimen.envs import registry
from regimen.errors import ConfigError, StorageError
from regimen.files.datasets import Writer
from regimen.sources import dataset
from regimen.sources.dataset import Dataset, RecordedEpisode

HYBRID = "probe/hybrid"


def episode(handle, steps, terminated, seed=0, masked=0) -> RecordedEpisode:
    rng = np.random.default_rng(seed)
    for space in (handle.observation_space, handle.action_space):
        space.seed(seed)
    obs, action = (
        jax.tree.map(lambda *x: np.stack(x), *(space.sample() for _ in range(n)))
        for space, n in ((handle.observation_space, steps + 1), (handle.action_space, steps))
    )
    mask = rng.random((steps + 1, masked)) < 0.5 if masked else None
    return RecordedEpisode(obs, action, rng.normal(size=steps).astype(np.float32), terminated, mask)


def write(out, env="cartpole", episodes=None, **note) -> tuple[Dataset, list[RecordedEpisode]]:
    handle = registry.resolve(env)
    episodes = episodes or [episode(handle, n, end, seed=n) for n, end in ((5, True), (1, False), (3, False))]
    writer = Writer(out, handle, "made up", "nobody")
    writer.add(episodes[:1])
    writer.add(episodes[1:])
    return dataset.read(writer.finish(note)), episodes


def part(tree, start, stop):
    return jax.tree.map(lambda x: x[start:stop], tree)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "made", env_steps=9)


@pytest.mark.parametrize("env", ["cartpole", "pendulum", HYBRID, "gym:FrozenLake-v1"])
def test_what_is_written_is_read(env, tmp_path):
    data, episodes = write(tmp_path / "set", env)
    assert (data.episodes, data.steps) == (3, 9) and data.starts.tolist() == [0, 5, 6]
    for one, start in zip(episodes, data.starts):
        n, stop = one.steps, start + one.steps
        for mine, k in ((data.obs, 0), (data.next_obs, 1)):  # the successor is the next observation, to the last
            same(part(mine, start, stop), part(one.obs, k, k + n))
        same(part(data.action, start, stop), one.action)
        np.testing.assert_array_equal(data.reward[start:stop], one.reward)
    assert data.terminated.nonzero()[0].tolist() == [4] and data.truncated.nonzero()[0].tolist() == [5, 8]
    np.testing.assert_allclose(data.returns, [e.reward.sum() for e in episodes], rtol=1e-6)
    assert f"3 episodes, 9 steps, return {data.returns.mean():.2f}" in data.summary()


def test_masks_are_kept(tmp_path):
    handle = registry.resolve("cartpole")
    data, episodes = write(tmp_path / "set", episodes=[episode(handle, 4, True, masked=2)])
    np.testing.assert_array_equal(data.mask, episodes[0].mask[:-1])
    np.testing.assert_array_equal(data.next_mask, episodes[0].mask[1:])


def test_minari_reads_it_and_makes_the_environment_again(made):
    data, _ = made
    theirs = minari.MinariDataset(str(data.path / "data"))
    assert (theirs.id, theirs.total_episodes, theirs.total_steps) == ("made-v0", 3, 9)
    assert "author" not in theirs.storage.metadata
    env = theirs.recover_environment()
    assert env.observation_space == theirs.observation_space and env.spec.max_episode_steps == 500
    assert datasets.environment(data.path) == ("cartpole", {})


def test_gymnasium_metadata_is_enough(made, tmp_path):
    """A dataset that somebody else wrote: the environment comes from Gymnasium's own specification."""
    shutil.copytree(made[0].path, tmp_path / "theirs")
    file = tmp_path / "theirs" / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["regimen"]
    spec = {"id": "Pendulum-v1", "max_episode_steps": 200, "kwargs": {"g": 9.0}}
    file.write_text(json.dumps(metadata | {"env_spec": json.dumps(spec)}))
    assert datasets.environment(tmp_path / "theirs") == ("gym:Pendulum-v1", {"g": 9.0, "max_episode_steps": 200})
    file.write_text(json.dumps({k: v for k, v in metadata.items() if k != "env_spec"}))
    with pytest.raises(ConfigError, match=r"does not say which environment.*--data"):
        datasets.environment(tmp_path / "theirs")


def test_minari_root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write("minari:mine/cartpole")
    assert minari.load_dataset("mine/cartpole-v0").total_steps == 9
    assert list(minari.list_local_datasets()) == ["mine/cartpole-v0"]
    assert dataset.read("minari:mine/cartpole-v0").steps == 9
    with pytest.raises(StorageError, match=r"no such dataset.*never downloaded"):
        dataset.read("minari:mine/other-v0")
    with pytest.raises(ConfigError, match="is no Minari id"):
        write("minari:a b/c")


def test_npz_is_the_same_data(made, tmp_path):
    data, _ = made
    again = dataset.read(data.save_npz(tmp_path / "made.npz"))
    assert again.digest() == data.digest() and again.name == data.name
    assert datasets.environment(again.path) == ("cartpole", {})
    for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs", "starts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))


def test_monte_carlo_returns_against_sums(made):
    """A terminated episode sums to its end; one that was cut goes on with the mean of its last rewards."""
    data, episodes = made
    gamma, got = 0.9, made[0].monte_carlo(0.9)
    for one, start in zip(episodes, data.starts):
        r = one.reward.astype(np.float64)
        tail = 0.0 if one.terminated else r.mean() / (1 - gamma)  # shorter than TAIL: all of its rewards
        for t in range(one.steps):
            expected = sum(gamma**i * x for i, x in enumerate(r[t:])) + gamma ** (one.steps - t) * tail
            assert got[start + t] == pytest.approx(expected, rel=1e-5)


def test_constant_reward_has_the_value_of_for_ever(tmp_path):
    handle = registry.resolve("pendulum")
    one = episode(handle, 200, False)
    data, _ = write(
        tmp_path / "set", "pendulum", [RecordedEpisode(one.obs, one.action, np.full(200, -2.0, np.float32), False)]
    )
    np.testing.assert_allclose(data.monte_carlo(0.99), -200.0, rtol=1e-5)


def test_on_device_every_row_can_be_drawn(made):
    data, _ = made
    dist = distributions.for_space(data.action_space)
    rows = dataset.on_device(data, dist, 0.9)
    assert rows.steps == 9 and rows.rows.reward.shape == (9, 1) and len(rows.mc_return) == 9
    sample = rows.sample(jax.random.key(0), 500, gamma=0.9)
    assert set(np.asarray(sample.reward).tolist()) == set(data.reward.tolist())
    ended = np.isin(np.asarray(sample.reward), data.reward[data.terminated])
    np.testing.assert_allclose(sample.discount, np.where(ended, 0.0, 0.9), rtol=1e-6)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made[0].path, tmp_path / "copy")


def change(path, name, values):
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file[name]
        file[name] = values


BROKEN = {
    "short": ("episode_0/observations", np.zeros((5, 4), np.float32), "5 observations for 5 rewards"),
    "early end": ("episode_0/terminations", np.array([0, 1, 0, 0, 1], bool), "ends at step 1 and has 5 steps"),
    "not finite": ("episode_0/rewards", np.full(5, np.nan), "rewards that are not finite"),
    "no such action": ("episode_0/actions", np.full(5, 7), r"outside its action space Discrete\(2\)"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_episodes_are_named(copy, broken):
    name, values, message = BROKEN[broken]
    change(copy, name, values)
    with pytest.raises(StorageError, match=message):
        dataset.read(copy)


def test_what_is_no_dataset_is_named(copy, tmp_path):
    with pytest.raises(StorageError, match="nowhere is not a Minari dataset: no such folder"):
        dataset.read(tmp_path / "nowhere")
    (copy / "data" / "main_data.hdf5").write_bytes(b"nothing")
    with pytest.raises(StorageError, match="cannot be read: OSError"):
        dataset.read(copy)
    (copy / "data" / "metadata.json").write_text("{")
    with pytest.raises(StorageError, match="damaged: its metadata cannot be read"):
        datasets.environment(copy)


def test_an_empty_dataset_is_named(tmp_path):
    writer = Writer(tmp_path / "empty", registry.resolve("cartpole"), "", "nobody")
    writer.add([])
    with pytest.raises(StorageError, match="is empty"):
        dataset.read(writer.finish({}))


def test_data_of_another_environment_is_refused(made):
    with pytest.raises(ConfigError, match=r"does not fit pendulum: its observation space is Box\(\[4\]"):
        dataset.require_fit(made[0], registry.resolve("pendulum"))


def test_nothing_is_overwritten(made):
    with pytest.raises(StorageError, match="already exists and is not empty"):
        Writer(made[0].path, registry.resolve("cartpole"), "", "nobody")


def test_bounds_hold_members():
    for space in (gym.Discrete(3, start=-1), gym.MultiDiscrete([2, 3]), gym.MultiBinary(2), gym.Box(-1, np.inf, (2,))):
        low, high = spaces.bounds(space)
        for _ in range(20):
            x = np.asarray(spaces.sample(space))
            assert (x >= low).all() and (x <= high).all()
