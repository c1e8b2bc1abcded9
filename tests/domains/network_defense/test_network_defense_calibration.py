"""Network defence against figures measured with the reference simulator (CybORG 2.1, scenario 2).

The reference is a sample of 40 episodes for each row, so that its mean has an error of its own. A difference is judged
by the error of both: 3 combined standard errors for each of the 24 comparisons of means and shares, which a correct
simulator passes together with a probability of at least 0.93. The seed is fixed, so the tests do not flicker.
"""

import numpy as np
import pytest
from network_defense_rollouts import returns, rollout

from regimen.domains.network_defense import network as net

REFERENCE = 40  # episodes
RETURNS = {  # red, blue: horizon -> mean, deviation
    ("b_line", "sleep"): {30: (-215.3, 19.6), 50: (-477.3, 19.6), 100: (-1132.3, 19.6)},
    ("b_line", "random"): {30: (-142.0, 81.0), 50: (-308.0, 174.0), 100: (-669.0, 390.0)},
    ("meander", "sleep"): {30: (-37.4, 14.5), 50: (-261.0, 64.0), 100: (-960.0, 62.0)},
}
MIXES = {  # sweep, scan, exploit, escalate, impact
    ("b_line", "sleep"): (0.021, 0.042, 0.043, 0.042, 0.853),
    ("b_line", "random"): (0.022, 0.064, 0.096, 0.075, 0.742),
    ("meander", "sleep"): (0.020, 0.100, 0.124, 0.102, 0.653),
}
SIGMAS = 3.0


@pytest.mark.parametrize(("red", "blue"), RETURNS)
def test_returns(red, blue):
    out = rollout(blue, red=red, mode="faithful")
    for steps, (mean, deviation) in RETURNS[red, blue].items():
        ours = returns(out, steps)
        error = np.hypot(deviation / np.sqrt(REFERENCE), ours.std() / np.sqrt(len(ours)))
        assert abs(ours.mean() - mean) < SIGMAS * error, (steps, ours.mean(), mean, error)
        assert 0.6 < ours.std() / deviation < 1.6  # of 40 values: 0.8 to 1.3, where the tails are normal


@pytest.mark.parametrize(("red", "blue"), MIXES)
def test_red_action_mix(red, blue):
    """The reference's deviations are not known; ours stand in for them. 0.0005 is its rounding."""
    kinds = rollout(blue, red=red, mode="faithful")["after"].red_kind
    for kind, share in enumerate(MIXES[red, blue]):
        ours = (kinds == kind).mean(1)
        error = ours.std() * np.hypot(1 / np.sqrt(REFERENCE), 1 / np.sqrt(len(ours)))
        assert abs(ours.mean() - share) < SIGMAS * error + 0.0005, (kind, ours.mean(), share, error)


@pytest.mark.parametrize(("red", "mean"), [("b_line", -280.0), ("meander", -305.0)])
def test_the_quirk(red, mean):
    """One Restore of Op_Server0 at the start, then sleep. The size of the reference's sample is not known: 20 at
    least."""
    ours = returns(rollout("once", red=red), 100)
    assert abs(ours.mean() - mean) < SIGMAS * ours.std() / np.sqrt(20)


def first_sessions(out):
    """By host: which episodes have one, when it came (steps before it), and whether it was root at once."""
    held, root = out["after"].root | out["after"].visible | out["after"].hidden, out["after"].root
    for host in range(net.N):
        has = ((held >> host) & 1) > 0
        some, when = has.any(1), has.argmax(1)
        at_once = ((root >> host) & 1)[np.arange(len(when)), when]
        yield net.HOSTS[host], when[some], at_once[some]


LEVELS = {  # root at once, of so many first sessions
    "User1": (9, 16),
    "User2": (10, 12),
    "User3": (10, 12),
    "User4": (14, 14),
    "Enterprise0": (0, 15),
    "Enterprise1": (1, 17),
    "Enterprise2": (0, 24),
    "Op_Server0": (0, 24),
}


def test_first_session_levels():
    """As likely as not less than one in a hundred for each host, and exactly none where there is no way to be root."""
    from scipy.stats import binom

    for name, _, root in first_sessions(rollout("sleep", red="b_line", mode="faithful")):
        if name not in LEVELS:
            assert name == "User0" or len(root) == 0
            continue
        k, n = LEVELS[name]
        p = root.mean()
        assert binom.cdf(k, n, p) > 0.01
        assert binom.sf(k - 1, n, p) > 0.01
        assert (p == 0) == (name in ("Enterprise0", "Op_Server0"))


def test_first_times():
    """Steps before the first session with Blue asleep. B_line: user 2, first enterprise 5 to 6, Enterprise2 about 9.7,
    server about 12.7. Meander: users about 13 to 15, enterprise 17 to 24, server about 32."""
    straight = {
        name: when.mean()
        for name, when, _ in first_sessions(rollout("sleep", red="b_line", mode="faithful"))
        if len(when)
    }
    assert all(2.0 <= straight[f"User{i}"] < 2.3 for i in (1, 2, 3, 4))
    assert 5.0 <= straight["Enterprise0"] <= straight["Enterprise1"] < 6.0
    assert straight["Enterprise2"] == pytest.approx(9.7, abs=0.5)
    assert straight["Op_Server0"] == pytest.approx(12.7, abs=0.5)
    assert not any(name.startswith(("Op_Host", "Defender")) for name in straight)
    winding = {
        name: when.mean()
        for name, when, _ in first_sessions(rollout("sleep", red="meander", mode="faithful"))
        if len(when)
    }
    assert all(13 < winding[f"User{i}"] < 15.5 for i in (1, 2, 3, 4))
    assert all(17 < winding[f"Enterprise{i}"] < 25 for i in range(3))
    assert winding["Op_Server0"] == pytest.approx(32, abs=2)
    assert "Defender" not in winding


def test_remove_against_random():
    """Reference: Remove ended 0 of 23 user sessions on Enterprise0, 0 of 21 on Op_Server0, 66 of 73 on Enterprise1, 88
    of 103 on Enterprise2: all but those by SSH (one in 15) and the undetected (one in 20)."""
    out = rollout("removes", red="b_line")
    before, after, action = out["before"], out["after"], out["action"]
    found = {}
    for host in (1, 2, 3, 7):
        user = (((before.visible | before.hidden) & ~before.root) >> host) & 1
        tried = (action == 15 + host) & (user > 0)
        still = ((after.root | after.visible | after.hidden) >> host) & 1
        reached = (after.red_kind == 2) & (after.red_target == host) & after.red_success  # Red came back at once
        found[net.HOSTS[host]] = (int((tried & ~reached).sum()), int((tried & ~reached & (still == 0)).sum()))
    assert found["Enterprise0"][1] == found["Op_Server0"][1] == 0
    assert min(n for n, _ in found.values()) > 50
    share = sum(found[h][1] for h in ("Enterprise1", "Enterprise2")) / sum(
        found[h][0] for h in ("Enterprise1", "Enterprise2")
    )
    expected = (66 + 88) / (73 + 103)
    assert abs(share - expected) < SIGMAS * np.sqrt(expected * (1 - expected) / (73 + 103))


def test_new_compromises_are_noticed():
    """Reference: 132 of 134 as an exploit with belief User, the others as a scan."""
    out = rollout("sleep", red="b_line", mode="faithful")
    before, after = (x.root | x.visible | x.hidden for x in (out["before"], out["after"]))
    new = (after & ~before)[..., None] >> np.arange(net.N) & 1
    obs = out["obs"].reshape(*new.shape, 4)[new > 0]
    seen = (obs == [1, 1, 0, 1]).all(-1)
    missed = (obs == [1, 0, 0, 0]).all(-1)
    assert (seen | missed).all()
    assert seen.mean() == pytest.approx(132 / 134, abs=SIGMAS * np.sqrt(0.025 * 0.975 / 134))
