"""Encoders of sets, images and choices: which is chosen, what must not change their outputs, and their equations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym

from regimen.algorithms.ppo import PPO
from regimen.config.algorithms.ppo import PPOConfig
from regimen.config.schema import NetworkConfig
from regimen.errors import ConfigError
from regimen.networks import choose, make_encoder
from regimen.schedule import pack
from regimen.types import Spec

AUTO = NetworkConfig()


def set_space(n=6, features=3):
    rows, own = gym.Box(-9, 9, (n, features), np.float32), gym.Box(-9, 9, (2,), np.float32)
    return gym.Dict({"own": own, "others": rows, "others_mask": gym.MultiBinary(n)})


def observe(seed, n=6, present=4, lead=(), features=3):
    """Observations whose first rows are there."""
    rng = np.random.default_rng(seed)
    mask = np.broadcast_to((np.arange(n) < present).astype(np.int32), (*lead, n))
    rows = rng.normal(size=(*lead, n, features)).astype(np.float32)
    return {"own": rng.normal(size=(*lead, 2)).astype(np.float32), "others": rows, "others_mask": mask}


def encoded(space, obs, params=None, **settings):
    """What an encoder makes of an observation, and its parameters."""
    config = dataclasses.replace(AUTO, **settings)
    inputs = choose(config, space)
    encoder = make_encoder(config, inputs)
    params = encoder.init(jax.random.key(0)) if params is None else params
    return np.asarray(encoder.apply(params, inputs.read(obs))), params


# --- sets ------------------------------------------------------------------------------------------------------------


def test_the_order_of_a_set_does_not_matter_bit_by_bit():
    """With small whole numbers all sums are exact, so that no rounding hides a difference."""
    space, obs, settings = set_space(), observe(0), {"activation": "relu"}
    obs["others"] = np.round(3 * obs["others"])
    _, params = encoded(space, obs, **settings)
    params = jax.tree.map(lambda x: jnp.round(4 * x), params)
    order = np.array([5, 2, 0, 4, 3, 1])
    moved = obs | {name: obs[name][order] for name in ("others", "others_mask")}
    one, other = (encoded(space, x, params, **settings)[0] for x in (obs, moved))
    assert np.array_equal(one, other) and np.abs(one[2:]).max() > 1


def test_the_order_of_a_set_does_not_matter_to_attention():
    obs, order = observe(1), np.random.default_rng(1).permutation(6)
    moved = obs | {name: obs[name][order] for name in ("others", "others_mask")}
    one, params = encoded(set_space(), obs, attention=True)
    np.testing.assert_allclose(one, encoded(set_space(), moved, params, attention=True)[0], atol=1e-6)
    plain = encoded(set_space(), obs)[0]
    assert not np.allclose(one, plain, atol=1e-3)  # it does something


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("present", [0, 1, 4])
def test_absent_rows_have_no_influence_whatever_they_hold(present, attention):
    space, obs = set_space(), observe(2, present=present)
    poisoned = obs | {"others": np.where(obs["others_mask"][:, None] > 0, obs["others"], np.nan)}
    one, params = encoded(space, obs, attention=attention)
    assert np.array_equal(one, encoded(space, poisoned, params, attention=attention)[0]) and np.isfinite(one).all()
    config = dataclasses.replace(AUTO, attention=attention)
    inputs = choose(config, space)
    encoder = make_encoder(config, inputs)
    grads = jax.grad(lambda p: jnp.square(encoder.apply(p, inputs.read(poisoned))).sum())(params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    if not present:
        assert not one[2:].any()


def test_absent_rows_do_not_change_what_attention_gives():
    """With room for twice as many, of which no more are there, the same weights give the same."""
    obs = observe(2)
    wide = {name: np.concatenate([obs[name], np.zeros_like(obs[name])]) for name in ("others", "others_mask")}
    one, params = encoded(set_space(), obs, attention=True)
    np.testing.assert_allclose(one, encoded(set_space(12), obs | wide, params, attention=True)[0], atol=1e-6)


def test_a_set_encoder_by_hand():
    """tanh(W2 tanh(W1 x + b1) + b2) of the rows that are there: their maximum, then their mean."""
    obs = observe(3)
    out, params = encoded(set_space(), obs, encoder_size=5)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params["part_0"])
    h = np.tanh(obs["others"][:4] @ p["first"]["kernel"] + p["first"]["bias"])
    h = np.tanh(h @ p["second"]["kernel"] + p["second"]["bias"])
    np.testing.assert_allclose(out, [*obs["own"], *h.max(0), *h.mean(0)], atol=1e-6)


def test_one_set_of_weights_acts_on_any_number_of_entities():
    """PPO made for 4 entities, with a normaliser, acts on 50, of which the same 3 are there."""
    config = PPOConfig(normalize_obs=True)
    few, many = (PPO(config).bind(Spec(set_space(n), gym.Discrete(3))) for n in (4, 50))
    params = few.actor_params(few.init(jax.random.key(0)))
    obs = observe(4, n=4, present=3, lead=(7,))
    params["norm"] = few.observed(params["norm"], obs, jnp.ones(7, bool))
    wide = {
        "own": obs["own"],
        "others": np.full((7, 50, 3), 1e9, np.float32),
        "others_mask": np.zeros((7, 50), np.int32),
    }
    wide["others"][:, 20:24], wide["others_mask"][:, 20:24] = obs["others"], obs["others_mask"]

    def logits(algo, obs):
        return algo.policy(params, algo.embed(params, algo.features(obs, params["norm"])), None)

    np.testing.assert_allclose(logits(few, obs), logits(many, wide), atol=1e-6)


def test_a_set_is_normalised_entity_by_entity():
    """One mean and deviation for each number of an entity, over those that are there, in rows that count."""
    algo = PPO(PPOConfig(normalize_obs=True)).bind(Spec(set_space(), gym.Discrete(2)))
    obs = observe(5, lead=(8,))
    obs["others"][:, 4:] = np.nan
    valid = jnp.arange(8) < 6
    norm = algo.observed(algo.first_norm()["obs"], obs, valid)
    rows = obs["others"][:6, :4].reshape(-1, 3)
    np.testing.assert_allclose(norm.parts["others"].mean, rows.mean(0), atol=1e-5)
    np.testing.assert_allclose(norm.parts["others"].std(), rows.std(0), atol=1e-4)
    np.testing.assert_allclose(norm.vector.mean, obs["own"][:6].mean(0), atol=1e-5)


# --- choice ----------------------------------------------------------------------------------------------------------

PIXELS = {n: gym.Box(0, 255, n, np.uint8) for n in ((84, 84, 4), (4, 84, 84), (84, 84), (10, 10, 4), (2, 5, 2))}


@pytest.mark.parametrize(
    ("space", "settings", "encoders"),
    [
        (gym.Box(-1, 1, (4,)), {}, []),
        (PIXELS[84, 84, 4], {}, ["cnn"]),
        (PIXELS[84, 84], {}, ["cnn"]),
        (PIXELS[10, 10, 4], {}, ["small"]),
        (gym.Box(0, 1, (10, 10, 7)), {}, ["small"]),
        (PIXELS[10, 10, 4], {"encoder": "impala"}, ["impala"]),
        (PIXELS[10, 10, 4], {"encoder": "mlp"}, []),
        (PIXELS[2, 5, 2], {}, []),
        (set_space(), {}, ["set"]),
        (set_space(), {"encoder": "mlp"}, []),
        (set_space(), {"name": "graph"}, []),
        (gym.Box(-1, 1, (5, 3)), {}, []),  # rows may have an order: only where it is asked for
        (gym.Box(-1, 1, (5, 3)), {"encoder": "set"}, ["set"]),
        (gym.Discrete(500), {}, []),
        (gym.Discrete(5000), {}, ["embedding"]),
        (gym.MultiDiscrete([3, 4]), {"embedding": "always"}, ["embedding"]),
        (gym.Tuple([PIXELS[84, 84, 4], gym.Box(-1, 1, (3,))]), {"encoder": "cnn"}, ["cnn"]),
        (gym.Dict({"map": PIXELS[10, 10, 4], **set_space().spaces}), {}, ["small", "set"]),
    ],
)
def test_which_encoder_reads_what(space, settings, encoders):
    inputs = choose(dataclasses.replace(AUTO, **settings), space)
    assert [part.encoder for part in inputs.parts] == encoders
    assert bool(inputs.words) == (
        bool(encoders) or space in (PIXELS[10, 10, 4], PIXELS[2, 5, 2], gym.Box(-1, 1, (5, 3)))
    )


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        (gym.Box(-1, 1, (4,)), {"encoder": "cnn"}, "network.encoder: 'cnn' reads an image"),
        (PIXELS[2, 5, 2], {"encoder": "cnn"}, "sides of at least 3"),
        (gym.Box(-1, 1, (4,)), {"encoder": "impala"}, "network.encoder: 'impala' reads an image"),
        (PIXELS[10, 10, 4], {"encoder": "set"}, "network.encoder: 'set' reads a set of entities"),
        (set_space(), {"encoder": "set", "name": "graph"}, "the graph network reads its graph itself"),
        (gym.Box(-1, 1, (4,)), {"attention": True}, "network.attention"),
        (set_space(), {"channels": "first"}, "network.channels"),
        (gym.Box(-1, 1, (4,)), {"encoder_size": 8}, "network.encoder_size"),
        (set_space(), {"embedding": "always"}, "network.embedding"),
    ],
)
def test_what_fits_no_part_is_refused_in_one_line(space, settings, message):
    with pytest.raises(ConfigError) as error:
        choose(dataclasses.replace(AUTO, **settings), space)
    assert message in str(error.value) and "\n" not in str(error.value)


# --- images ----------------------------------------------------------------------------------------------------------


def convolve(x, kernel, bias, stride):
    """A valid convolution [H, W, C] with rectified units, pixel by pixel."""
    side, height, width = kernel.shape[0], x.shape[0], x.shape[1]
    out = np.zeros(((height - side) // stride + 1, (width - side) // stride + 1, kernel.shape[-1]))
    for i, j in np.ndindex(out.shape[:2]):
        window = x[i * stride : i * stride + side, j * stride : j * stride + side]
        out[i, j] = np.tensordot(window, kernel, 3) + bias
    return np.maximum(out, 0.0)


def test_nature_convolutions_by_hand():
    """Strides 4, 2 and 1 over bytes divided by 255: 44 x 40 pixels become 10 x 9, 4 x 3 and 2 x 1."""
    space = gym.Box(0, 255, (44, 40, 2), np.uint8)
    image = np.random.default_rng(0).integers(0, 256, (44, 40, 2)).astype(np.uint8)
    out, params = encoded(space, image, encoder_size=6)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params["part_0"])
    x = image / 255.0
    for i, (stride, shape) in enumerate([(4, (10, 9, 32)), (2, (4, 3, 64)), (1, (2, 1, 64))]):
        x = convolve(x, p[f"conv_{i}"]["kernel"], p[f"conv_{i}"]["bias"], stride)
        assert x.shape == shape
    np.testing.assert_allclose(out, np.maximum(x.ravel() @ p["dense"]["kernel"] + p["dense"]["bias"], 0), atol=1e-5)
    for i, rows in enumerate((8 * 8 * 2, 16 * 32, 9 * 64)):
        flat = np.asarray(params["part_0"][f"conv_{i}"]["kernel"]).reshape(rows, -1)
        np.testing.assert_allclose(flat.T @ flat, 2 * np.eye(flat.shape[1]), atol=1e-4)  # orthogonal, of gain sqrt(2)


def same_convolution(x, layer):
    """A convolution of 3 x 3 pixels that keeps the size, without an activation, pixel by pixel."""
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((*x.shape[:2], layer["kernel"].shape[-1]))
    for i, j in np.ndindex(out.shape[:2]):
        out[i, j] = np.tensordot(padded[i : i + 3, j : j + 3], layer["kernel"], 3) + layer["bias"]
    return out


def pooled(x):
    """The maximum over 3 x 3 pixels at every second one; what lies outside does not count (TensorFlow's SAME)."""
    before = [n % 2 for n in x.shape[:2]]  # of an odd side one pixel before it, of an even one none
    padded = np.pad(x, (*((b, 2) for b in before), (0, 0)), constant_values=-np.inf)
    out = np.zeros((-(-x.shape[0] // 2), -(-x.shape[1] // 2), x.shape[2]))
    for i, j in np.ndindex(out.shape[:2]):
        out[i, j] = padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1))
    return out


def test_impala_convolutions_by_hand():
    """Figure 3 of the paper, left out the recurrent layer: convolution and maximum, then x + conv(relu(conv(relu(x))))
    twice, for 16, 32 and 32 filters; a unit, a dense layer and a unit."""
    space, image = gym.Box(0, 255, (9, 6, 2), np.uint8), np.random.default_rng(3).integers(0, 256, (9, 6, 2))
    out, params = encoded(space, image.astype(np.uint8), encoder="impala", encoder_size=5)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params["part_0"])
    x = image / 255.0
    for i, shape in enumerate([(5, 3, 16), (3, 2, 32), (2, 1, 32)]):
        x = pooled(same_convolution(x, p[f"conv_{i}"]))
        assert x.shape == shape
        for first in (0, 2):
            inner = same_convolution(np.maximum(x, 0), p[f"block_{i}_{first}"])
            x = x + same_convolution(np.maximum(inner, 0), p[f"block_{i}_{first + 1}"])
    dense = np.maximum(x, 0).ravel() @ p["dense"]["kernel"] + p["dense"]["bias"]
    np.testing.assert_allclose(out, np.maximum(dense, 0), atol=1e-4)
    assert out.any()


@pytest.mark.parametrize("settings", [{}, {"encoder": "impala"}])
def test_channels_first_and_last_read_the_same_pixels(settings):
    first, last = gym.Box(0, 255, (3, 12, 11), np.uint8), gym.Box(0, 255, (12, 11, 3), np.uint8)
    image = np.random.default_rng(1).integers(0, 256, (2, 5, 3, 12, 11)).astype(np.uint8)
    one, params = encoded(first, image, **settings)
    other = encoded(last, np.moveaxis(image, 2, -1), params, **settings)[0]
    assert np.array_equal(one, other) and one.shape[:2] == (2, 5) and one.any()
    as_told = encoded(gym.Box(0, 255, (12, 13, 14), np.uint8), np.zeros((12, 13, 14), np.uint8), channels="first")[1]
    assert as_told["part_0"]["conv"]["kernel"].shape == (3, 3, 12, 16)


def test_bytes_stay_bytes_until_the_encoder():
    """In what networks read, in the rows of minibatches (four bytes a word) and out of them again."""
    algo = PPO(PPOConfig(normalize_obs=True)).bind(Spec(PIXELS[10, 10, 4], gym.Discrete(2)))
    image = np.random.default_rng(2).integers(0, 256, (3, 4, 10, 10, 4)).astype(np.uint8)
    image[0, 0, :, :, :] = [1, 0, 160, 127]  # as a float32, a number that is none
    x = algo.features(image, None)
    assert x.parts["observation"].dtype == jnp.uint8 and algo.first_norm() == {}
    packed = pack({"obs": x, "odd": jnp.asarray(image[..., 0, 0, :3])}, jnp.ones((3, 4), bool), all_valid=True)
    assert packed.matrix.shape == (12, 400 // 4 + 1)
    rows = packed.take(jnp.arange(12))
    assert np.array_equal(rows["obs"].parts["observation"], image.reshape(12, 10, 10, 4))
    assert np.array_equal(rows["odd"], image[..., 0, 0, :3].reshape(12, 3))


def test_an_embedding_is_a_row_of_a_table():
    space = gym.MultiDiscrete([3, 4], start=[5, -1])
    out, params = encoded(space, np.array([[6, -1], [7, 2]]), embedding="always", encoder_size=3)
    table = params["part_0"]["table"]["embedding"]
    np.testing.assert_array_equal(out, [[*table[1], *table[3]], [*table[2], *table[6]]])
