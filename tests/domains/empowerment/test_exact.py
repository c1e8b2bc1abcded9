"""The exact solver: reference values, a slow solver in plain Python, closed forms, invariances, and what it refuses."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from empowerment_oracle import SlowSolver
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import commitment, menu, table_world

import regimen
from regimen.domains.empowerment import equations, exact, tabular
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.reach import TooLargeError, enumerate_states
from regimen.domains.empowerment.theory import Theory
from regimen.domains.empowerment.worlds.bush import BushWorld
from regimen.envs.registry import make_env
from regimen.errors import ConfigError, EnvError

N, W, S, E, PASS = range(5)
NINE, PLAIN = {"gamma_h": 0.9, "gamma_r": 0.9}, {"zeta": 1, "xi": 1, "eta": 1}
LATE = {"gamma_h": 0.95, "gamma_r": 0.95}


def start(world, theory, **env_args):
    return regimen.empowerment.solve(world, env_args=env_args, **theory).at()


# --- reference values ------------------------------------------------------------------------------------------------


def test_tiny3():
    p = start("world/tiny3", {"beta_r": 0, **NINE, **PLAIN})
    np.testing.assert_allclose(p.v_h_e[0], [1, 0.2 * 0.2 * 0.8 * 0.9**2, 0], atol=1e-12)
    np.testing.assert_allclose([p.x_h[0], p.u_r, p.v_r], [0.341973, -2.924205, -7.943033], atol=1e-5)
    np.testing.assert_allclose(p.q_r, [-5.13, -4.574140, -5.13, -5.13, -5.13], atol=1e-5)
    p = start("world/tiny3", {"beta_r": 5, **NINE, **PLAIN})
    np.testing.assert_allclose(p.pi_r, [0.071074, 0.715704, 0.071074, 0.071074, 0.071074], atol=1e-5)
    np.testing.assert_allclose([p.v_h_e[0, 1], p.q_r[W], p.v_r], [0.382752, -3.232308, -5.941401], atol=1e-5)


def test_tiny3_with_five_steps():
    p = start("world/tiny3", NINE, max_episode_steps=5)
    found = [p.v_h_e[0, 1], p.pi_r[W], p.q_r[W], p.q_r[E], p.v_r]
    np.testing.assert_allclose(found, [0.514085, 0.230908, -6.877922, -7.005021, -9.562720], atol=1e-5)
    p = start("world/tiny3", {"beta_r": 0, **NINE}, max_episode_steps=5)
    np.testing.assert_allclose([p.v_h_e[0, 1], p.v_r], [0.104395, -13.305884], atol=1e-5)


def test_corr5():
    solution = regimen.empowerment.solve("world/corr5", beta_r=4, **NINE, **PLAIN)
    p = solution.at()
    assert solution.pairs == 46
    np.testing.assert_allclose(p.q_r, np.where([0, 1, 0, 1, 0], -10.497798, -11.515546), atol=1e-5)
    np.testing.assert_allclose(p.pi_r, np.where([0, 1, 0, 1, 0], 0.245584, 0.169611), atol=1e-5)
    np.testing.assert_allclose([*p.x_h, p.u_r, p.v_r], [0.226988, 0.226988, -4.405512, -15.421174], atol=1e-5)
    p = start("world/corr5", {})
    np.testing.assert_allclose(p.q_r, np.where([0, 1, 0, 1, 0], -14.037185, -15.696663), atol=1e-5)
    np.testing.assert_allclose(
        [p.pi_r[W], p.pi_r[N], p.x_h[0], p.v_r], [0.335412, 0.109725, 0.220551, -19.857438], atol=1e-5
    )


def test_accruing_during_a_step_changes_no_policy():
    world, theory = make_env("world/corr5"), Theory(beta_r=4, **NINE, **PLAIN)
    plain, weighed = exact.solve(world, theory), exact.solve(world, theory, weigh_duration=True)
    assert weighed.at().v_r == pytest.approx(-14.636578, abs=1e-5)
    for t in range(4):
        np.testing.assert_allclose(weighed.pi_r[t], plain.pi_r[t], atol=1e-9)


@pytest.mark.parametrize(
    ("beta_r", "east", "value"),
    [(1, 0.254031, -14.228029), (5, 0.368280, -10.431945), (10, 0.422627, -9.107888), (50, 0.362750, -7.881062)],
)
def test_way1x5(beta_r, east, value):
    """The robot steps out of the way; the four other actions have one effect and one value."""
    solution = regimen.empowerment.solve("world/way1x5", beta_r=beta_r, **LATE, **PLAIN)
    p = solution.at()
    np.testing.assert_allclose([p.pi_r[E], p.v_r], [east, value], atol=1e-5)
    assert solution.pairs == 47 and len(solution.table.states) == 10
    assert len({*p.q_r[[N, W, S, PASS]].round(12)}) == 1 and p.q_r[E] > p.q_r[N]
    if beta_r == 10:
        np.testing.assert_allclose(p.q_r[[E, N]], [-6.927854, -7.713560], atol=1e-5)


def test_way1x5_with_defaults():
    p = start("world/way1x5", {})
    np.testing.assert_allclose([p.pi_r[E], p.v_r], [0.457340, -10.945960], atol=1e-5)


@pytest.mark.parametrize(
    ("prior", "v_m", "v_e", "east", "value"),
    [
        ("cautious", [0] * 5, [1, 0.83229, 0.16298, 0.00647, 0], 0.39838, -15.42774),
        ("optimistic", [0, 0.89129, 0.80559, 0.77662, 0], [1, 0.84940, 0.64839, 0.32596, 0], 0.49388, -11.81414),
        ("mean", [0, 0.45753, 0.11629, 0.01327, 0], None, 0.53046, -11.80508),
    ],
)
def test_way1x5_with_computed_priors(prior, v_m, v_e, east, value):
    p = start("world/way1x5", {"prior": prior, "beta_h": 10, **LATE})
    np.testing.assert_allclose(p.v_h_m[0], v_m, atol=1e-5)
    np.testing.assert_allclose([p.pi_r[E], p.v_r], [east, value], atol=1e-5)
    if v_e is not None:
        np.testing.assert_allclose(p.v_h_e[0], v_e, atol=1e-5)


def test_number_of_states_of_the_long_corridor():
    table = enumerate_states(make_env("world/bush1x7"))
    assert (len(table.states), table.pairs) == (241, 2108)


# --- against plain Python --------------------------------------------------------------------------------------------

SMALL = [
    (BushWorld(map="Hu 1 . / . Ro .", B=2, max_episode_steps=3, beta_h=2.0), Theory(beta_r=3, nu_h=0.1)),
    (BushWorld(map="Hu 1 Ro Hu", B=2, max_episode_steps=2), Theory(prior="cautious", beta_h=4, xi=1.5)),
    (BushWorld(map="Hu Ro 1 Hu", B=2, max_episode_steps=2), Theory(prior="optimistic", beta_h=math.inf, nu_h=0.2)),
    (BushWorld(map="Ro Hu 1 Ro", B=2, max_episode_steps=2, fill_density=1), Theory(prior="mean", zeta=1.5)),
    (
        BushWorld(map="Hu 2 . Ro 1", B=3, max_episode_steps=3, possible_goals="0,0,2,0; 3,0 = 2; 4,0"),
        Theory(eta=1.5, xi=2, gamma_r=1, gamma_h=1),
    ),
]


def compare(world, theory):
    """Every value of every reachable state and time."""
    solution, slow = exact.solve(world, theory), SlowSolver(world, theory)
    slow.at(tuple(np.asarray(world.initial()).tolist()), 0)
    assert len(slow.memo) == sum(int(solution.live(t).sum()) for t in range(world.max_episode_steps))
    for (state, t), expected in slow.memo.items():
        point = solution.at(np.array(state), t)
        for name in ("q_r", "pi_r", "v_h_e", "x_h", "u_r", "v_r", "pi_h"):
            np.testing.assert_allclose(getattr(point, name), expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
        if theory.prior != "heuristic":
            np.testing.assert_allclose(point.v_h_m, expected["v_h_m"], atol=1e-12)
    return solution


@pytest.mark.parametrize(("world", "theory"), SMALL, ids=["habit", "cautious", "optimistic", "two robots", "goals"])
def test_against_plain_python(world, theory):
    compare(world, theory)


CELLS = st.sampled_from([".", "1", "2"])


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    st.lists(CELLS, min_size=4, max_size=4),
    st.permutations([0, 1, 2, 3]),
    st.floats(0, 30),
    st.floats(1, 3),
    st.floats(1, 2),
    st.floats(0.5, 1),
)
def test_random_worlds(cells, places, beta_r, zeta, xi, gamma):
    """Values equal the slow solver's, and have the signs and sums they must."""
    cells[places[0]], cells[places[1]] = "Ro", "Hu"
    world = BushWorld(map=" ".join(cells[:2]) + "/" + " ".join(cells[2:]), B=2, max_episode_steps=3)
    solution = compare(world, Theory(beta_r=beta_r, zeta=zeta, xi=xi, gamma_h=gamma, gamma_r=gamma))
    for t in range(3):
        live = solution.live(t)
        assert (solution.q_r[t][live] < 0).all() and (solution.v_r[t][live] < 0).all()
        assert (solution.u_r[t][live] <= -1 + 1e-9).all()
        assert ((solution.v_h_e[t] >= 0) & (solution.v_h_e[t] <= 1 + 1e-9)).all()
        np.testing.assert_allclose(solution.pi_r[t][live].sum(-1), 1, atol=1e-12)
        np.testing.assert_allclose(solution.pi_h[t].sum(-1), 1, atol=1e-12)


# --- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta_h", [2, 3])
def test_menu(beta_h):
    """k actions, each for its own goal: V = e^b / (e^b + k - 1)."""
    for k in (2, 5):
        p = exact.solve(menu(k), Theory(prior="mean", beta_h=beta_h, form="sum")).at()
        v = math.exp(beta_h) / (math.exp(beta_h) + k - 1)
        np.testing.assert_allclose(p.v_h_e, v, rtol=1e-12)
        np.testing.assert_allclose(p.x_h, k * v**2, rtol=1e-12)


@pytest.mark.parametrize(("beta_h", "zeta", "best"), [(2, 2, 6), (3, 2, 19), (2, 1.5, 13)])
def test_the_best_menu_is_neither_small_nor_large(beta_h, zeta, best):
    def power(k):
        q = jnp.eye(k)
        v = equations.v_human(equations.human_policy(q, beta_h), q)
        return equations.x_h(v[None], np.full((1, k), 1 / k), zeta, "sum")[0]

    with jax.enable_x64(True):
        powers = jax.jit(lambda: {k: power(k) for k in (best - 2, best - 1, best, best + 1, best + 2)})()
    assert max(powers, key=powers.get) == best
    assert abs((math.exp(beta_h) - 1) / (zeta - 1) - best) < 0.5


def test_a_robot_commits_when_humans_are_rational():
    """Uncommitted, the human guesses: X = 2^(1 - zeta). Committed, it decides."""
    commits = []
    for beta_h in (0.0, 1.0, 5.0, math.inf):
        solution = exact.solve(commitment(), Theory(prior="cautious", beta_h=beta_h, form="sum", eta=1))
        power = {s: solution.at(s, 1).x_h[0] for s in (1, 2)}
        v = 1.0 if math.isinf(beta_h) else math.exp(beta_h) / (math.exp(beta_h) + 1)
        np.testing.assert_allclose([power[1], power[2]], [2 ** (1 - 2), 2 * v**2], rtol=1e-12)
        assert math.isnan(solution.at(2, 1).q_r[1]) and solution.at(2, 1).pi_r.tolist() == [1, 0]
        assert power[2] > 1 or beta_h < 5
        commits.append(solution.at().pi_r[1])
    assert commits[0] == pytest.approx(0.5) and commits == sorted(commits) and commits[-1] > 0.99


# --- invariances -----------------------------------------------------------------------------------------------------


def test_mirrored_worlds_have_mirrored_policies():
    here = regimen.empowerment.solve(BushWorld(map="Hu 1 Ro . Hu .", max_episode_steps=3))
    there = regimen.empowerment.solve(BushWorld(map=". Hu . Ro 1 Hu", max_episode_steps=3))
    np.testing.assert_allclose(here.at().q_r, there.at().q_r[[N, E, S, W, PASS]], rtol=1e-12)
    assert here.at().v_r == pytest.approx(there.at().v_r, rel=1e-12)
    np.testing.assert_allclose(here.at().x_h, there.at().x_h[::-1], rtol=1e-12)


def test_sum_and_mean_have_one_policy():
    """And values that differ by (|H| |G|^-xi)^eta, up to what the end is worth."""
    mean, total = (regimen.empowerment.solve("world/corr5", form=form, xi=1.3) for form in ("mean", "sum"))
    factor = (2 * 5**-1.3) ** 1.1
    for t in range(4):
        np.testing.assert_allclose(total.pi_r[t], mean.pi_r[t], atol=1e-8)
        np.testing.assert_allclose(total.v_r[t], factor * mean.v_r[t], rtol=1e-8)


def test_without_preference_robots_do_anything():
    for policy in ("power", "boltzmann"):
        solution = regimen.empowerment.solve("world/corr5", beta_r=0, robot_policy=policy)
        assert all((pi == 0.2).all() or np.allclose(pi, 0.2, atol=1e-15) for pi in solution.pi_r)


def test_weaker_humans_come_first_when_inequality_matters():
    """Which of two humans the robot frees: the one who is shut in, the more so the larger xi."""
    leans = [regimen.empowerment.solve("world/unequal", xi=xi, beta_r=20).at().pi_r for xi in (1.0, 2.0)]
    assert leans[0][W] > leans[0][E] and leans[1][W] / leans[1][E] > leans[0][W] / leans[0][E]


def test_the_robot_frees_the_trapped_human():
    """From its corner it comes nearer to the bushes that shut the human in, and the human gains by it."""
    kind, careless = (regimen.empowerment.solve("world/free3x3", beta_r=beta_r).at() for beta_r in (30, 0))
    assert kind.pi_r[[N, W]].sum() > 0.5 and kind.x_h[0] > careless.x_h[0]


# --- the chain -------------------------------------------------------------------------------------------------------


def test_the_induced_chain():
    solution = regimen.empowerment.solve("world/bush1x7", env_args={"max_episode_steps": 4})
    for t in range(4):
        chain = solution.chain(t)
        out = np.bincount(chain.source, chain.probability, len(solution.v_r[t]))
        np.testing.assert_allclose(out, 1, atol=1e-12)
        assert chain.target.max() < solution.table.reachable_by[t + 1]
    occupancy = solution.occupancy()
    np.testing.assert_allclose(occupancy.sum(1), 1, atol=1e-12)
    assert not occupancy[~solution.table.reachable_at].any()


def test_evaluating_u_r_on_the_chain_gives_v_r():
    solution = regimen.empowerment.solve("world/corr5")
    theory = solution.theory
    values = solution.evaluate(lambda t: solution.u_r[t], theory.gamma_r, theory.terminal_v_r)
    for t in range(4):
        np.testing.assert_allclose(values[t], solution.v_r[t], rtol=1e-10)
    steps = solution.evaluate(np.ones(len(solution.table.states)))
    assert [v[0] for v in steps] == pytest.approx([4, 3, 2, 1])


def test_worlds_that_end_by_themselves():
    """State 1 ends it: no power counts there, and V_r is what the end is worth."""
    prior = [[[0, 1], [1, 0]]] * 2
    moves = [[[1, 0], [0, 0]], [[1, 1], [1, 1]]]
    world = table_world(moves, [[1, 0], [0, 1]], prior_table=prior, ends=(1,), max_episode_steps=3)
    solution = exact.solve(world, Theory(terminal_v_r=-0.5, gamma_r=0.9))
    assert solution.at(1, 2).v_r == -0.5 and math.isnan(solution.at(1, 2).u_r)
    assert solution.live(1).tolist() == [True, False] and solution.table.pairs == 1 + 2 + 2 + 2
    p = solution.at(0, 2)  # the last step: all successors are ends
    np.testing.assert_allclose(p.q_r, [-0.45, -0.45], rtol=1e-12)
    np.testing.assert_allclose(p.v_h_e[0], [1, 0.5], rtol=1e-12)
    assert solution.occupancy()[3].sum() == pytest.approx(1)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_powerless_humans_are_named():
    with pytest.raises(EnvError) as error:
        regimen.empowerment.solve("world/corr5", env_args={"possible_goals": "0,0"})
    message = str(error.value)
    assert "human 1 can attain none of its goals from state" in message and "at time 3 of 4" in message
    assert "X_h = 0" in message and "env.possible_goals" in message


def test_states_that_cannot_be_there_yet_need_no_power():
    """Goals that only hold for states reachable at a time are enough."""
    moves = [[[1, 1], [1, 1]], [[2, 2], [2, 2]], [[2, 2], [2, 2]]]
    world = table_world(moves, [[0], [1], [1]], prior_table=[[[0.5, 0.5]]] * 3, max_episode_steps=2)
    assert exact.solve(world).at().x_h[0] == pytest.approx(1)


def test_large_worlds_are_refused_before_memory_is_spent():
    many = BushWorld(map="Hu Hu Hu Hu Hu / Ro Ro Ro Ro Ro / . . . . .", max_episode_steps=2)
    with pytest.raises(ConfigError, match=r"too large to solve exactly: more than 0 states in 2 steps times 9,765,625"):
        exact.solve(many, limit=1_000_000)
    with pytest.raises(ConfigError, match=r"lower env.max_episode_steps, take a smaller map or fewer agents, raise"):
        regimen.empowerment.solve("world/bush7x3", limit=20_000)
    with pytest.raises(ConfigError, match="the solution is too large to keep"):
        regimen.empowerment.solve("world/way1x5", limit=600, env_args={"max_episode_steps": 200})


def test_worlds_that_are_only_sampled_are_refused():
    class Sampled(type(make_env("world/tiny3"))):
        outcomes = exact.World.outcomes

    with pytest.raises(ConfigError, match="only known by a sampler"):
        exact.solve(Sampled())


def test_worlds_without_a_prior_need_a_computed_one():
    class Silent(type(make_env("world/tiny3"))):
        prior = exact.World.prior

    with pytest.raises(ConfigError, match="prior: Silent has none of its own; compute it with cautious"):
        exact.solve(jax.tree_util.register_static(Silent)())


def test_broken_laws_are_refused():
    leaky = table_world([[[{0: 0.7}, 0], [0, 0]]], [[1]], prior_table=[[[0.5, 0.5]]])
    with pytest.raises(EnvError, match=r"joint action 0 in state \[0\] are no distribution: they sum to 0.7"):
        exact.solve(leaky)
    mute = table_world([[[0, 0], [0, 0]]], [[1]], prior_table=[[[0.5, 0.5]]], robot_may=[[0, 0]])
    with pytest.raises(EnvError, match="leaves the robots no action in state"):
        exact.solve(mute)


def test_unknown_parameters_and_places():
    with pytest.raises(ConfigError, match="no parameter 'beta_x'; did you mean 'beta_"):
        regimen.empowerment.solve("world/tiny3", beta_x=3)
    with pytest.raises(ConfigError, match="cartpole is no world"):
        regimen.empowerment.solve("cartpole")
    solution = regimen.empowerment.solve("world/tiny3")
    with pytest.raises(EnvError, match="time 3 is outside this world; it goes from 0 to 2"):
        solution.at(time=3)
    with pytest.raises(EnvError, match="not reachable from the start"):
        solution.at(np.array([0, 1, 0, 0, 0]))
    assert dataclasses.asdict(solution.theory)["beta_r"] == 10


def test_the_guard_counts_what_robots_add():
    """Three robots' joint actions outweigh the goals of one human."""
    world = BushWorld(map="Ro Ro Ro Hu", max_episode_steps=2, possible_goals="0,0,3,0")
    table = enumerate_states(world)
    pairs = sum(table.reachable_by[:-1])
    least = pairs * 2 * 125 // exact.FLOATS  # of q_r and pi_r alone
    with pytest.raises(ConfigError, match="too large to keep"):
        exact.check_size(table, Theory(), least)
    exact.check_size(table, Theory(), 2 * least)


@pytest.mark.parametrize("robot_policy", ["power", "boltzmann"])
def test_a_robot_without_softness_takes_the_best(robot_policy):
    """The limit of large beta_r; ties are shared."""
    world = make_env("world/corr5")
    hard = exact.solve(world, Theory(beta_r="inf", robot_policy=robot_policy))
    soft = exact.solve(world, Theory(beta_r=1e5, robot_policy=robot_policy))
    assert hard.at().pi_r == pytest.approx([0, 0.5, 0, 0.5, 0])  # west and east are mirror images
    for t, live in ((t, hard.live(t)) for t in range(4)):
        assert np.allclose(hard.v_r[t][live], soft.v_r[t][live], rtol=1e-3)
        best = hard.q_r[t][live] >= hard.q_r[t][live].max(-1, keepdims=True) * (1 + 1e-11)
        assert ((hard.pi_r[t][live] > 0) == best).all()


def test_an_infinite_beta_r_needs_an_end():
    with pytest.raises(ConfigError, match="beta_r: inf is for worlds that end"):
        tabular.solve(make_env("world/corr5"), Theory(beta_r="inf"))
    with pytest.raises(ConfigError, match=r"algo\.beta_r: inf is for"):
        EmpowermentConfig(beta_r=math.inf).validate()


def test_a_refusal_says_how_large_the_world_would_be():
    world = make_env("world/bush1x7")
    truth = len(enumerate_states(world).states)
    with pytest.raises(TooLargeError) as error:
        enumerate_states(world, most=truth // 2)
    states, size, minutes = re.search(r"an estimate: (\S+) states, (\S+) GB, (\S+) minutes", str(error.value)).groups()
    assert truth / 4 < float(states) < truth * 4 and float(size) > 0 and float(minutes) > 0
