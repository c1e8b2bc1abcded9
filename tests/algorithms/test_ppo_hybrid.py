"""PPO on hybrid actions: the loss against numpy, ratios on real environments, entropy by kind, gradient balance."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym
from scipy import stats

from regimen.algorithms import balance
from regimen.algorithms.ppo import PPO, Knobs, PPORow
from regimen.config.schema import NetworkConfig
from regimen.envs.registry import make_env
from regimen.schedule import Steps
from regimen.sources.scan import ScanSource
from regimen.types import Spec

pytestmark = pytest.mark.usefixtures("compilation_cache")

MODES = ("joint", "per_leaf", "per_element")
TINY, W, EPS = NetworkConfig(hidden=(8,)), 24, 0.2
SPACE = gym.Dict(
    [
        ("speed", gym.Box(-1, 1, (2,), np.float32)),
        ("choice", gym.MultiDiscrete([2, 2, 2])),
        ("kind", gym.Discrete(3)),
        ("spawn", gym.Box(0, 1, (3, 2), np.float32)),
    ]
)
CONDITIONS = {"spawn": ("choice", (0,)), "speed": ("kind", (1, 2))}
CHOICES = {"choice": (2, 2, 2), "kind": (3,)}
SIZES = {"speed": 2, "choice": 3, "kind": 1, "spawn": 6}
HEADS = {"speed": 2, "choice": 6, "kind": 3, "spawn": 6}
WHERE = dict(zip(SIZES, np.split(np.arange(12), np.cumsum(list(SIZES.values()))[:-1])))  # elements of each leaf


def bound(**settings):
    settings = {"log_std_init": -1.0, "ent_coef": 0.01, "balance_gradients": True} | settings
    return PPO(network=TINY, **settings).bind(
        Spec(gym.Box(-1, 1, (4,), np.float32), SPACE, action_conditions=CONDITIONS)
    )


def with_settings(algo, **settings):
    """The same parts with other float settings."""
    other = PPO(dataclasses.replace(algo.config, **settings), algo.network)
    other.binding = algo.binding
    return other


def knobs_of(**changes):
    knobs = Knobs(EPS, 0.01, 0.5, weights=jnp.ones(1), shift=0.1, scale=0.7, balance=jnp.ones(2))
    return knobs.replace(**changes)


def masks():
    """Some rows with choices that are forced, in each leaf; some with none."""
    rng = np.random.default_rng(5)
    mask = rng.random((W, 9)) < 0.6
    for start, size in ((0, 2), (2, 2), (4, 2), (6, 3)):
        mask[np.arange(W), start + rng.integers(size, size=W)] = True
    mask[:4] = True
    return mask


@pytest.fixture(scope="module")
def data():
    """Parameters of a rollout policy, rows it acted in, and other parameters to judge them by."""
    algo, rng = bound(), np.random.default_rng(0)
    old = algo.init(jax.random.key(0)).models["policy"].params

    def moved(params, by, seed):
        leaves, treedef = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        return jax.tree.unflatten(treedef, [x + by * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys)])

    old = moved(old, 0.4, 1)
    obs, mask = jnp.asarray(rng.normal(size=(W, 4)), jnp.float32), jnp.asarray(masks())
    acting = {"actor": old["actor"], "log_std": old["log_std"]}
    noise = algo.noise(jax.random.key(2), (W,))
    action, _, extras = jax.jit(algo.act)(acting, obs, (), noise, mask=mask)
    advantage, target, value = (jnp.asarray(rng.normal(size=(W, 1)), jnp.float32) for _ in range(3))
    row = PPORow(obs, action, extras["log_prob"], advantage, target, value, mask)
    return {"old": old, "new": moved(old, 0.05, 3), "row": row}


@pytest.fixture(scope="module")
def losses():
    """algo, params, row, knobs -> (loss [W], metrics), and the gradient of its mean; compiled once for each binding."""
    loss = jax.jit(lambda algo, params, row, knobs: algo.loss(params, row, knobs))
    grad = jax.jit(lambda algo, params, row, knobs: jax.grad(lambda p: algo.loss(p, row, knobs)[0].mean())(params))
    return loss, grad


@pytest.fixture(scope="module")
def algos():
    return {ratio: bound(ratio=ratio) for ratio in MODES}


# --- the loss once more, in numpy, one element at a time -------------------------------------------------------------


class Reference:
    """Rows as plain Python sees them, in float64."""

    def __init__(self, params, row):
        self.p, self.r = (jax.tree.map(lambda x: np.asarray(x, np.float64), x) for x in (params, row))
        out = self.mlp("actor")
        cuts = np.cumsum(list(HEADS.values()))[:-1]
        self.head = dict(zip(HEADS, np.split(out, cuts, axis=1)))
        free = np.split(self.p["log_std"], [2])
        self.std = {"speed": np.exp(free[0]), "spawn": np.exp(free[1])}
        self.mask = dict(zip(CHOICES, np.split(np.asarray(row.mask), [6], axis=1)))

    def mlp(self, which):
        p = self.p[which]
        hidden = np.tanh(self.r.obs @ p["dense_0"]["kernel"] + p["dense_0"]["bias"])
        return hidden @ p["head"]["kernel"] + p["head"]["bias"]

    def options(self, w, leaf, i):
        """(logits, allowed) of one choice."""
        start = sum(CHOICES[leaf][:i])
        part = slice(start, start + CHOICES[leaf][i])
        return self.head[leaf][w, part], self.mask[leaf][w, part]

    def element(self, w, leaf, i):
        """(matters, log-probability, entropy) of one element."""
        action = np.atleast_1d(self.r.action[leaf][w])[i]
        if leaf in CHOICES:
            logits, allowed = self.options(w, leaf, i)
            p = np.where(allowed, np.exp(logits - logits.max()), 0.0)
            p = p / p.sum()
            return allowed.sum() > 1, np.log(p[int(action)]), stats.entropy(p)
        controller, choices = CONDITIONS[leaf]
        decides = np.atleast_1d(self.r.action[controller][w])
        matters = decides[i * len(decides) // SIZES[leaf]] in choices
        mean, std = self.head[leaf][w, i], self.std[leaf][i]
        log_prob = stats.norm.logpdf(action, mean, std) - np.log(1 - np.tanh(action) ** 2)
        z = np.linspace(-9, 9, 1801)
        slope = (np.log(1 - np.tanh(mean + std * z) ** 2) * stats.norm.pdf(z)).sum() * (z[1] - z[0])
        return matters, log_prob, stats.norm.entropy(mean, std) + slope

    def loss(self, ratio, weights=(1.0, 1.0), floors=(None, None), floor_coef=1.0, vf_coef=0.5):
        value_loss = 0.5 * (self.mlp("critic")[:, 0] - self.r.target[:, 0]) ** 2
        total = []
        for w in range(W):
            advantage = (self.r.advantage[w, 0] - 0.1) / 0.7
            groups, bonus, shortfall = {}, 0.0, 0.0
            for leaf in SIZES:
                found = []
                for i in range(SIZES[leaf]):
                    matters, log_prob, entropy = self.element(w, leaf, i)
                    if not matters:
                        continue
                    found.append(entropy)
                    tied = ("choice", i // 2) if leaf == "spawn" else (leaf, i)
                    group = {"joint": 0, "per_leaf": leaf, "per_element": tied}[ratio]
                    groups[group] = groups.get(group, 0.0) + log_prob - self.r.log_prob[w, WHERE[leaf][i]]
                kind = 0 if leaf in CHOICES else 1
                bonus += weights[kind] * sum(found)
                if floors[kind] is not None and found:
                    shortfall += max(floors[kind] - np.mean(found), 0.0)
            policy = kl = 0.0
            for log_ratio in groups.values():
                rho = np.exp(log_ratio)
                policy -= min(rho * advantage, np.clip(rho, 1 - EPS, 1 + EPS) * advantage)
                kl += rho - 1 - log_ratio
            total.append(policy + vf_coef * value_loss[w] - 0.01 * bonus + 0.5 * kl + floor_coef * shortfall)
        return np.array(total)


@pytest.mark.parametrize("ratio", MODES)
def test_loss_matches_numpy(data, losses, algos, ratio):
    loss, metrics = losses[0](algos[ratio], data["new"], data["row"], knobs_of())
    np.testing.assert_allclose(loss, Reference(data["new"], data["row"]).loss(ratio), rtol=2e-4, atol=2e-4)
    assert 0 < float(metrics["clip_fraction"].mean()) < 1, "some ratios are clipped and some are not"


def test_stored_log_probabilities_are_those_of_the_policy_that_acted(data):
    reference, stored = Reference(data["old"], data["row"]), np.asarray(data["row"].log_prob)
    seen = set()
    for w in range(W):
        for leaf in SIZES:
            for i in range(SIZES[leaf]):
                matters, log_prob, _ = reference.element(w, leaf, i)
                seen.add((leaf, bool(matters)))
                assert stored[w, WHERE[leaf][i]] == pytest.approx(log_prob if matters else 0.0, abs=1e-4)
    assert seen == {(leaf, yes) for leaf in SIZES for yes in (True, False)}, "every leaf matters somewhere, not always"


def test_gradient_matches_finite_differences_of_numpy(data, losses, algos):
    """Along a random direction of all parameters, away from the corners of the clip."""
    direction = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), data["new"])
    h = 1e-5

    def at(step):
        params = jax.tree.map(lambda x, d: np.asarray(x, np.float64) + step * np.asarray(d), data["new"], direction)
        return Reference(params, data["row"]).loss("per_leaf").mean()

    grad = losses[1](algos["per_leaf"], data["new"], data["row"], knobs_of())
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: float((g * d).sum()), grad, direction)))
    assert slope == pytest.approx((at(h) - at(-h)) / (2 * h), rel=2e-3)


@pytest.mark.parametrize("ratio", MODES)
def test_what_does_not_matter_changes_nothing(data, losses, algos, ratio):
    """Other actions and log-probabilities of irrelevant elements, other log-probabilities of forced choices."""
    algo, row = algos[ratio], data["row"]
    matters = np.asarray(algo.bound.elements.relevance(row.action, row.mask))
    assert all((~matters[:, where]).any() for where in WHERE.values())
    action = dict(row.action)
    for leaf in ("speed", "spawn"):
        action[leaf] = jnp.where(matters[:, WHERE[leaf]], action[leaf], 1.7)
    spoiled = row.replace(action=action, log_prob=jnp.where(matters, row.log_prob, -3.3))
    for f in losses:
        before, after = (f(algo, data["new"], x, knobs_of()) for x in (row, spoiled))
        jax.tree.map(np.testing.assert_array_equal, before, after)
    other = row.replace(log_prob=jnp.where(matters, row.log_prob - 0.1, row.log_prob))
    before, after = (np.asarray(losses[0](algo, data["new"], x, knobs_of())[0]) for x in (row, other))
    assert np.abs(after - before).max() > 1e-3, "what matters does"


def test_no_gradient_reaches_what_does_not_matter(data, algos):
    algo, row, knobs = algos["per_element"], data["row"], knobs_of()
    head = algo.bound.actor.apply(data["new"]["actor"], row.obs)

    def total(head):
        out = algo.bound.dist.params(head, data["new"]["log_std"], row.mask)
        return (algo.policy_loss(out, row, knobs)[0] - algo.entropy(out, row)[0]).sum()

    grad = np.asarray(jax.jit(jax.grad(total))(head))
    matters = np.asarray(algo.bound.elements.relevance(row.action, row.mask))
    for leaf, part in zip(HEADS, np.split(grad, np.cumsum(list(HEADS.values()))[:-1], axis=1)):
        mine = matters[:, WHERE[leaf]]
        if leaf in CHOICES:  # the options of a choice share its fate
            mine = np.concatenate([np.repeat(mine[:, [i]], n, axis=1) for i, n in enumerate(CHOICES[leaf])], axis=1)
        assert (part[~mine] == 0).all() and (np.abs(part[mine]) > 0).any(), leaf


def test_gradients_stay_finite_where_a_ratio_would_overflow(data, losses, algos):
    """Many parts, each a little likelier, make a joint ratio that float32 cannot hold."""
    row = data["row"].replace(log_prob=data["row"].log_prob - 40.0)
    loss, metrics = losses[0](algos["joint"], data["new"], row, knobs_of())
    grad = losses[1](algos["joint"], data["new"], row, knobs_of())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((loss, metrics, grad)))
    assert float(metrics["clip_fraction"].min()) == 1.0 and float(loss.max()) > 1e6


# --- clipping as the number of nodes grows ---------------------------------------------------------------------------


def test_only_the_joint_ratio_saturates_as_nodes_are_added():
    """The same small change of every node's outputs: the joint ratio leaves the clip range, a node's own does not."""
    found = {"joint": [], "per_element": []}

    @jax.jit
    def fractions(algos, key):
        dist = algos["joint"].bound.dist
        head, change = jax.random.normal(key, (2, 256, dist.head_size))
        log_std, ones = jnp.zeros(dist.free_size), jnp.ones((256, 1))
        old, new = (dist.params(x, log_std) for x in (head, head + 0.07 * change))
        action = dist.sample(old, dist.noise(key, (256,)))
        row = PPORow(ones, action, algos["joint"].log_probs(old, action, None)[0], ones, ones, ones, None)
        return {k: a.policy_loss(new, row, knobs_of())[1]["clip_fraction"].mean() for k, a in algos.items()}

    for n in (4, 16, 64):
        space = gym.Dict(choice=gym.MultiDiscrete([2] * n), spawn=gym.Box(-1, 1, (n, 2), np.float32))
        spec = Spec(gym.Box(-1, 1, (1,), np.float32), space, action_conditions={"spawn": ("choice", (0,))})
        for ratio, x in fractions({k: PPO(network=TINY, ratio=k).bind(spec) for k in found}, jax.random.key(n)).items():
            found[ratio].append(float(x))
    joint, single = found["joint"], found["per_element"]
    assert joint[0] < joint[1] < joint[2] and joint[2] > 0.6, joint
    assert max(single) < 0.1 and max(single) - min(single) < 0.02, single


# --- entropy by kind -------------------------------------------------------------------------------------------------


def test_entropy_weights_scale_their_own_kind(data, losses, algos):
    algo, (loss, _) = algos["joint"], losses
    reference = Reference(data["new"], data["row"])
    plain = np.asarray(loss(algo, data["new"], data["row"], knobs_of())[0])
    entropy = [np.zeros(W), np.zeros(W)]
    for w in range(W):
        for leaf in SIZES:
            for i in range(SIZES[leaf]):
                matters, _, h = reference.element(w, leaf, i)
                entropy[leaf not in CHOICES][w] += h if matters else 0.0
    for name, h in zip(("ent_discrete", "ent_continuous"), entropy):
        other = loss(with_settings(algo, **{name: 3.0}), data["new"], data["row"], knobs_of())[0]
        np.testing.assert_allclose(other - plain, -0.01 * 2.0 * h, atol=2e-5)


def test_entropy_floors(data, losses):
    """The loss grows by exactly the shortfall times its weight; above the floor nothing happens."""
    algo = bound(ent_floor_discrete=0.4, ent_floor_continuous=-0.2, ent_floor_coef=2.5)
    reference = Reference(data["new"], data["row"])
    got, metrics = losses[0](algo, data["new"], data["row"], knobs_of())
    np.testing.assert_allclose(got, reference.loss("joint", floors=(0.4, -0.2), floor_coef=2.5), rtol=2e-4, atol=2e-4)
    short = np.asarray(metrics["entropy_shortfall"])
    assert (short > 1e-3).any() and (short == 0).any()
    np.testing.assert_allclose(got - reference.loss("joint"), 2.5 * short, atol=5e-4)
    low = with_settings(algo, ent_floor_discrete=-1.0, ent_floor_continuous=-50.0)
    free = with_settings(algo, ent_floor_coef=0.0)
    for f in losses:
        a, b = (f(x, data["new"], data["row"], knobs_of()) for x in (low, free))
        a, b = (x[0] if isinstance(x, tuple) else x for x in (a, b))
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("kind, leaf", [("discrete", "choice"), ("continuous", "spawn")])
def test_a_floor_pushes_entropy_up(data, kind, leaf):
    algo = bound(**{f"ent_floor_{kind}": 3.0})
    row = data["row"].replace(
        mask=jnp.ones((W, 9), bool), action=data["row"].action | {"choice": jnp.zeros((W, 3), int)}
    )
    head = algo.bound.actor.apply(data["new"]["actor"], row.obs)

    @jax.jit
    def entropies(head, log_std):
        return algo.entropy(algo.bound.dist.params(head, log_std, row.mask), row)

    def shortfall(head, log_std):
        return entropies(head, log_std)[1].sum()

    at = head, data["new"]["log_std"]
    step = jax.grad(shortfall, (0, 1))(*at)
    after = [x - 0.01 * g for x, g in zip(at, step)]
    rise = [float(entropies(*x)[2][f"entropy/{leaf}"].mean()) for x in (at, after)]
    assert rise[1] > rise[0] + 1e-4
    other = "spawn" if leaf == "choice" else "choice"
    assert float(entropies(*after)[2][f"entropy/{other}"].mean()) == float(entropies(*at)[2][f"entropy/{other}"].mean())


def test_a_floor_counts_open_choices_only():
    """Choices that the mask forces have no entropy to fall short of, in a plain action as in a hybrid one."""
    space, obs = gym.MultiDiscrete([2, 2, 2]), gym.Box(-1, 1, (1,), np.float32)
    mask = jnp.array([[1, 1, 1, 0, 0, 1], [1, 0, 1, 0, 0, 1]], bool)
    ones, head = jnp.ones((2, 1)), jnp.zeros((2, 6))
    for ratio, wrapped in (("joint", False), ("per_element", False), ("joint", True)):
        action = jnp.array([[0, 0, 1], [0, 0, 1]])
        spec = Spec(obs, gym.Dict(a=space) if wrapped else space)
        algo = PPO(network=TINY, ratio=ratio, ent_floor_discrete=1.0).bind(spec)
        row = PPORow(ones, {"a": action} if wrapped else action, jnp.zeros(2), ones, ones, ones, mask)
        bonus, short, metrics = algo.entropy(algo.bound.dist.params(head, jnp.zeros(0), mask), row)
        np.testing.assert_allclose(bonus, [np.log(2), 0.0], atol=1e-6)
        np.testing.assert_allclose(short, [1 - np.log(2), 0.0], atol=1e-6)
        np.testing.assert_allclose(metrics["entropy"], bonus)


# --- gradient balance ------------------------------------------------------------------------------------------------


def test_balance_makes_the_norms_equal():
    factors = np.asarray(balance.factors({"norms": jnp.array([5.2, 0.8]), "steps": jnp.int32(100)}, 100))
    scaled = factors * [5.2, 0.8]
    assert scaled[0] == pytest.approx(scaled[1], rel=1e-5) and factors.mean() == pytest.approx(1.0)
    assert factors[0] == pytest.approx(2 * 0.8 / 6.0, rel=1e-5)
    early = balance.factors({"norms": jnp.array([5.2, 0.8]), "steps": jnp.int32(99)}, 100)
    assert early.tolist() == [1.0, 1.0] and balance.factors(None, 0).tolist() == [1.0, 1.0]
    for norms in ([1e9, 1e-9], [1e-9, 1e9], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]):
        factors = np.asarray(balance.factors({"norms": jnp.array(norms), "steps": jnp.int32(1)}, 0))
        assert factors.mean() == pytest.approx(1.0) and factors.min() > 0.1 and factors.max() < 1.9, norms


def test_balance_follows_the_norms():
    state, norms = balance.zero(), None
    for i, (d, c) in enumerate([(4.0, 1.0), (9.0, 0.0), (1.0, 16.0)]):
        state = balance.follow(state, {"head_grad_discrete": jnp.float32(d), "head_grad_continuous": jnp.float32(c)})
        new = np.sqrt([d, c])
        norms = new if norms is None else 0.9 * norms + 0.1 * new
        np.testing.assert_allclose(state["norms"], norms, rtol=1e-6)
        assert int(state["steps"]) == i + 1
    assert balance.follow(None, {}) is None


def test_head_gradients_are_those_of_the_policy_loss(data, losses, algos):
    algo, row, knobs = algos["per_leaf"], data["row"], knobs_of()
    _, metrics = losses[0](algo, data["new"], row, knobs_of(balance=jnp.array([0.3, 1.7])))
    h, grad = 1e-3, np.zeros((W, 17))
    head = np.asarray(algo.bound.actor.apply(data["new"]["actor"], row.obs))
    policy = jax.jit(
        lambda x: algo.policy_loss(algo.bound.dist.params(x, data["new"]["log_std"], row.mask), row, knobs)[0]
    )
    for j in range(17):  # a column at a time: each row's loss depends on its own outputs only
        step = h * np.eye(17, dtype=np.float32)[j]
        grad[:, j] = (policy(head + step) - policy(head - step)) / (2 * h)
    kinds = np.repeat([1, 0, 0, 1], list(HEADS.values()))
    exact = jax.grad(lambda x: policy(x).sum())(head)
    for i, name in enumerate(balance.METRICS):
        np.testing.assert_allclose(metrics[name], np.square(exact[:, kinds == i]).sum(1), rtol=1e-4, atol=1e-6)
        expected = (grad[:, kinds == i] ** 2).sum(1)
        away = np.abs(metrics[name] - expected) <= 0.02 * expected + 1e-3  # a difference may step over a clip's corner
        assert away.mean() > 0.9 and expected.max() > 0.1, name


def test_balance_scales_gradients_and_not_values(data, losses, algos):
    algo, (loss, grad) = algos["joint"], losses
    plain, scaled = (knobs_of(balance=jnp.array(x)) for x in ([1.0, 1.0], [0.25, 1.75]))
    a, b = (loss(algo, data["new"], data["row"], k) for k in (plain, scaled))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    a, b = (grad(algo, data["new"], data["row"], k) for k in (plain, scaled))
    factor = np.where(np.repeat([1, 0, 0, 1], list(HEADS.values())), 1.75, 0.25)
    for name in ("bias", "kernel"):
        np.testing.assert_allclose(b["actor"]["head"][name], a["actor"]["head"][name] * factor, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(a["log_std"], b["log_std"])
    jax.tree.map(np.testing.assert_array_equal, a["critic"], b["critic"])


def test_balance_is_for_actions_of_both_kinds():
    only = gym.Dict(a=gym.Discrete(2), b=gym.MultiDiscrete([2, 2]))
    algo = PPO(network=TINY, **BALANCED).bind(Spec(gym.Box(-1, 1, (1,), np.float32), only))
    state = algo.init(jax.random.key(0))
    assert "balance" not in state.aux and algo.bound.head_kinds is None
    assert algo.knobs(state, jnp.ones(1)).balance.tolist() == [1.0, 1.0]
    assert bound(balance_gradients=False).bound.head_kinds is None


# --- real environments -----------------------------------------------------------------------------------------------

GRAPH = NetworkConfig(name="graph", hidden=(8,))
BALANCED = {"balance_gradients": True, "balance_warmup": 0}
ENVS = {
    "probe/hybrid": ({}, TINY, {}),
    "moving": ({"max_episode_steps": 6}, TINY, {"normalize_obs": True}),
    "platform": ({}, TINY, {}),
    "durotaxis": ({"capacity": 32, "max_episode_steps": 6}, GRAPH, {"state_std": True}),
}


@pytest.fixture(scope="module", params=ENVS)
def collected(request):
    """Two rollouts with an update between them: (algorithms by ratio mode, [(state, batch, metrics of its update)])."""
    args, network, settings = ENVS[request.param]
    env = make_env(request.param, **args)
    spec = Spec(
        env.observation_space,
        env.action_space,
        env.reward_components,
        num_envs=4,
        action_conditions=env.action_conditions,
    )
    settings = {"epochs": 1, "minibatch_size": 10_000, "lr": 0.03} | BALANCED | settings
    algos = {ratio: PPO(network=network, ratio=ratio, **settings).bind(spec) for ratio in MODES}
    algo, source = algos["joint"], ScanSource(Steps(32), 4)
    rollout, update = jax.jit(source.next), jax.jit(lambda algo, state, batch: algo.update(state, batch))
    state, carry, found = algo.init(jax.random.key(0)), jax.jit(source.init)(env, algo, jax.random.key(1)), []
    for i in range(2):
        carry, batch, *_ = rollout(env, algo, carry, algo.actor_params(state), jax.random.key(2 + i))
        new, metrics = update(algo, state, batch)
        found.append((state, batch, metrics))
        state = new.replace(clock=state.clock.advance(jnp.int32(32), jnp.int32(0)))
    return algos, found


@jax.jit
def judge(algos, state, batch):
    """By mode, for the rows of a batch under the policy that collected it: (ratios, loss, ratios that count, KL, clip
    fraction)."""
    params, rows = state.models["policy"].params, batch.valid.size
    flat = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), batch.replace(length=None))
    obs = algos["joint"].features(flat.obs, state.norm.get("obs"))
    mask, ones = flat.extras.get("mask"), jnp.ones((rows, 1))
    row = PPORow(obs, flat.action, flat.extras["log_prob"], ones, ones, ones, mask)
    head, found = algos["joint"].bound.actor.apply(params["actor"], obs), {}
    for mode, algo in algos.items():
        elements = algo.bound.elements
        out = algo.bound.dist.params(head, params.get("log_std", jnp.zeros(0)), mask)
        log_prob, relevant = algo.log_probs(out, row.action, mask)
        loss, said = algo.policy_loss(out, row, knobs_of(shift=0.0, scale=1.0))
        active = (elements.grouped(relevant.astype(jnp.float32)) > 0).sum(-1)
        ratio = jnp.exp(elements.grouped(log_prob - row.log_prob))
        found[mode] = ratio, loss, active, said["approx_kl"], said["clip_fraction"]
    return found


def test_first_epoch_ratio_is_one(collected):
    """In each mode, in two updates: every ratio is 1, the KL is 0 and nothing is clipped."""
    algos, found = collected
    for state, batch, metrics in found:
        assert abs(float(metrics["approx_kl"])) < 1e-6 and float(metrics["clip_fraction"]) == 0.0
        for ratio, loss, active, kl, clipped in judge(algos, state, batch).values():
            np.testing.assert_allclose(ratio, 1.0, atol=1e-5)
            np.testing.assert_allclose(loss, -active, rtol=1e-5)  # 1 for each ratio that counts
            assert active.max() >= 1 and abs(kl).max() < 1e-6 and not clipped.any()
    moved = [s.models["policy"].params["actor"] for s, _, _ in found]
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), *moved))) > 1e-2


def test_the_second_update_is_balanced(collected):
    algos, ((first, _, _), (second, _, metrics)) = collected
    algo = algos["joint"]
    assert int(first.aux["balance"]["steps"]) == 0 and int(second.aux["balance"]["steps"]) == 1
    assert abs(float(algo.knobs(second, jnp.ones(1)).balance[0]) - 1) > 1e-3
    waiting = PPO(dataclasses.replace(algo.config, balance_warmup=2), algo.network)
    assert waiting.knobs(second, jnp.ones(1)).balance.tolist() == [1.0, 1.0]
    assert float(metrics["balance_discrete"] + metrics["balance_continuous"]) == pytest.approx(2.0)
