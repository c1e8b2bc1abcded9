"""Nested action spaces as parts by name, and masks in every form they come in."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st

from regimen import spaces
from regimen.envs.adapters.gymnasium import read_mask
from regimen.errors import ConfigError

plain = st.one_of(
    st.builds(lambda n, start: gym.Discrete(n, start=start), st.integers(1, 4), st.integers(-2, 2)),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(gym.MultiDiscrete),
    st.integers(1, 3).map(gym.MultiBinary),
    st.lists(st.integers(1, 3), min_size=1, max_size=2).map(lambda shape: gym.Box(-1, 1, tuple(shape), np.float32)),
)
names = st.sampled_from(["arm", "choice", "0", "speed", "b"])
nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.dictionaries(names, inner, min_size=1, max_size=3).map(lambda d: gym.Dict(list(d.items()))),
        st.lists(inner, min_size=1, max_size=3).map(gym.Tuple),
    ),
    max_leaves=6,
)

HYBRID = gym.Dict(
    [
        ("turn", gym.Box(-1, 1, (2,), np.float32)),
        ("choice", gym.Discrete(3, start=5)),
        ("arm", gym.Tuple([gym.MultiDiscrete([2, 3]), gym.MultiBinary(2)])),
    ]
)
SIZES = [3, 2, 3, 2, 2]  # its choices in order


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(nested)
def test_parts_of_a_nested_space_and_back(space):
    parts, member = spaces.leaves(space), space.sample()
    values = spaces.split(space, member)
    assert list(values) == list(parts), "the same names in the same order"
    for name, value in values.items():
        assert parts[name].contains(value)
    same(spaces.build(space, values), member)
    assert space.contains(spaces.build(space, values))
    assert spaces.leaves(spaces.from_json(spaces.to_json(space))) == parts
    options = sum(spaces.logits(leaf) for leaf in parts.values())
    row = spaces.mask_row(space, None)
    assert row.shape == (options,) and row.all()


def test_names_are_paths():
    assert list(spaces.leaves(HYBRID)) == ["turn", "choice", "arm/0", "arm/1"]
    assert list(spaces.leaves(gym.Discrete(2))) == [""]
    assert [spaces.logits(s) for s in spaces.leaves(HYBRID).values()] == [0, 3, 5, 4]
    with pytest.raises(KeyError):
        spaces.build(HYBRID, {"turn": 0, "choice": 1, "arm/0": 2})


@pytest.mark.parametrize(
    "mask",
    [
        {"choice": np.array([1, 0, 1], np.int8), "arm": (np.array([1, 1, 0, 1, 1]), None)},
        {"choice": np.array([True, False, True]), "turn": None, "arm": (np.array([1, 1, 0, 1, 1], bool), np.ones(4))},
        {"choice": [1, 0, 1], "arm": [(np.array([1, 1]), np.array([0, 1, 1])), np.ones((2, 2))]},
        {"choice": (1, 0, 1), "arm": ([[1, 1], [0, 1, 1]], None)},
        {"choice": jnp.array([1, 0, 1]), "arm": (jnp.array([1, 1, 0, 1, 1]), None)},
        np.array([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1], np.int8),
    ],
    ids=["int8", "bool", "tuples", "lists", "jax", "row"],
)
def test_forms_of_a_mask(mask):
    row = np.asarray(spaces.mask_row(HYBRID, mask))
    assert row.dtype == bool and row.astype(int).tolist() == [1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]


def test_a_mask_is_traced_and_batched():
    rng = np.random.default_rng(0)
    choice, arm = rng.random((4, 3)) < 0.5, rng.random((4, 5)) < 0.5
    expected = np.concatenate([choice, arm, np.ones((4, 4), bool)], axis=1)
    got = spaces.mask_row(HYBRID, {"choice": choice, "arm": (arm, None)}, (4,))
    assert isinstance(got, np.ndarray)
    np.testing.assert_array_equal(got, expected)
    traced = jax.jit(jax.vmap(lambda c, a: spaces.mask_row(HYBRID, {"choice": c, "arm": (a, None)})))(choice, arm)
    np.testing.assert_array_equal(traced, expected)
    np.testing.assert_array_equal(spaces.mask_row(HYBRID, expected, (4,)), expected)
    assert spaces.mask_row(HYBRID, None, (4,)).shape == (4, 12)


@pytest.mark.parametrize(
    "space, mask",
    [
        (gym.Tuple([gym.Discrete(2), gym.Discrete(3)]), (np.array([1, 0]), np.array([0, 1, 1]))),
        (gym.Tuple([gym.Discrete(2), gym.Discrete(3)]), (np.array([1, 0]), None)),
        (gym.Dict(a=gym.Discrete(2)), {"a": [1, 0]}),
        (gym.MultiDiscrete([2, 3]), (np.array([1, 0]), np.array([0, 1, 1]))),
        (gym.Discrete(2), [1, 0]),
    ],
    ids=["tuple", "tuple with None", "dict of lists", "multi", "list"],
)
def test_what_a_gymnasium_environment_sends(space, mask):
    """Every form of info["action_mask"] is read and comes out as the same row."""
    row = spaces.mask_row(space, read_mask({"action_mask": mask}))
    expected = {2: [1, 0], 5: [1, 0, 0, 1, 1]}[len(row)]
    if isinstance(mask, tuple) and mask[1] is None:
        expected = [1, 0, 1, 1, 1]
    assert np.asarray(row).astype(int).tolist() == expected


@pytest.mark.parametrize(
    "space, mask, message",
    [
        (HYBRID, {"choise": np.ones(3)}, r"action mask: the action has no part 'choise'"),
        (HYBRID, {"choice": np.ones(2)}, r"action mask of shape \(2,\): Discrete\(3, start=5\) has 3 options"),
        (HYBRID, {"arm": (np.ones(5),)}, r"action mask: Tuple\(.*\) needs a tuple of masks, one for each part"),
        (HYBRID, {"arm": 3}, r"needs a tuple of masks"),
        (HYBRID, (None, None, None), r"action mask: Dict\(.*\) needs a dict of masks by part"),
        (HYBRID, np.ones(11), r"action mask of shape \(11,\): Dict\(.*\) has 12 options"),
        (gym.MultiDiscrete([2, 3]), [np.ones(2), np.ones(2)], r"action mask of shape \(4,\): .* has 5 options"),
        (gym.Discrete(3), {"a": np.ones(3)}, r"Discrete\(3\) has 3 options"),
    ],
)
def test_wrong_masks_are_named(space, mask, message):
    with pytest.raises(ConfigError, match=message):
        spaces.mask_row(space, mask)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=24, max_size=24))
def test_allows_needs_one_option_of_every_choice(bits):
    row = np.array(bits).reshape(2, 12)
    expected = all(part.any() for one in row for part in np.split(one, np.cumsum(SIZES)[:-1]))
    assert spaces.allows(HYBRID, row) == expected
    assert spaces.allows(HYBRID, row[0]) == all(p.any() for p in np.split(row[0], np.cumsum(SIZES)[:-1]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**12 - 1), st.integers(0, 4))
def test_samples_respect_the_mask(word, spare):
    row = np.array([word >> i & 1 for i in range(12)], bool)
    for start, size in zip(np.cumsum([0, *SIZES[:-1]]), SIZES):
        row[start + spare % size] = True
    for _ in range(5):
        member = spaces.sample(HYBRID, row)
        assert HYBRID.contains(member)
        choices = [member["choice"] - 5, *member["arm"][0], *member["arm"][1]]
        for choice, options in zip(choices, np.split(row, np.cumsum(SIZES)[:-1])):
            assert options[int(choice)], (choices, row)
    starts = gym.Tuple([gym.MultiDiscrete([3, 3], start=[4, -1])])
    mask = np.array([0, 1, 0, 1, 0, 0], bool)
    assert spaces.sample(starts, mask)[0].tolist() == [5, -1]


def test_samples_without_a_mask_are_the_spaces_own():
    HYBRID.seed(3)
    first = spaces.sample(HYBRID)
    HYBRID.seed(3)
    same(first, HYBRID.sample())


def test_saved_spaces_keep_the_order_of_their_parts():
    """A policy's outputs are in that order; Gymnasium sorts the parts of a dict."""
    inner = gym.Dict([("z", gym.Discrete(3, start=1)), ("a", gym.MultiBinary((2, 3)))])
    space = gym.Dict([("run", gym.Box(-1.0, np.inf, (2,))), ("hop", gym.Tuple([inner, gym.MultiDiscrete([2, 4])]))])
    loaded = spaces.from_json(json.loads(json.dumps(spaces.to_json(space))))
    assert loaded == space and list(spaces.leaves(loaded)) == list(spaces.leaves(space))
    assert spaces.same(loaded, space) and spaces.describe(loaded) == spaces.describe(space)
    turned = gym.Dict([("hop", space["hop"]), ("run", space["run"])])
    assert turned == space and not spaces.same(turned, space), "equal for Gymnasium, not for a policy"
