"""Workflows as values: parsing, encodings, distances, and which orders an environment can tell apart."""

import itertools

import numpy as np
import pytest
from scipy.stats import kendalltau

from regimen.domains.network_defense import workflow as module
from regimen.domains.network_defense.workflow import (
    ALWAYS,
    ATTACKED,
    CANONICAL,
    TYPES,
    Workflow,
    all_workflows,
    classes_for,
    equivalence_classes,
    footrule,
    kendall,
)
from regimen.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "critical_first",
        "critical-first",
        "D,S,E,H,U",
        "d, s, e, h, u",
        "DSEHU",
        "D > S > E > H > U",
        "defender>op_server>enterprise>op_host>user",
        "Defender, op-server, enterprise, op_host, user",
    ],
)
def test_one_order_in_many_spellings(text):
    parsed = Workflow.parse(text)
    assert parsed.order == ("defender", "op_server", "enterprise", "op_host", "user")
    assert parsed.name == "critical_first"
    assert Workflow.parse(parsed) == parsed


def test_every_order_survives_its_name_letters_index_and_text():
    for index, workflow in enumerate(all_workflows()):
        assert workflow.index == index
        for text in (workflow.name, workflow.letters, ",".join(workflow.letters), str(workflow)):
            assert Workflow.parse(text) == workflow
    assert len({w.name for w in all_workflows()}) == 120
    assert all(Workflow.parse(name).letters == letters for name, letters in CANONICAL.items())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("D,S,E,H,H", "op_host given twice; user missing"),
        ("D,S,E,H", "user missing"),
        ("DSEH", "user missing"),
        ("D,S,E,H,U,U", "user given twice"),
        ("defender>op_sever>enterprise>op_host>user", "unknown unit type 'op_sever'; did you mean 'op_server'?"),
        ("D,S,E,H,X", "unknown unit type 'X'"),
        ("critical_frist", "did you mean 'critical_first'?"),
        ("DSEHX", "unknown unit type 'X'; choose from: D (defender)"),
        ("", "empty"),
        (" , ", "empty"),
    ],
)
def test_what_is_no_order(text, says):
    with pytest.raises(ConfigError, match="workflow: ") as caught:
        Workflow.parse(text)
    assert says in str(caught.value)


def test_direct_construction_is_checked_too():
    with pytest.raises(ConfigError, match="did you mean 'user'"):
        Workflow(("defender", "enterprise", "op_server", "op_host", "users"))


def test_encodings():
    workflow = Workflow.parse("S,H,D,E,U")
    one_hot = workflow.one_hot()
    assert one_hot.shape == (25,) and one_hot.sum() == 5
    assert [5 * position + TYPES.index(unit) for position, unit in enumerate(workflow.order)] == list(
        np.flatnonzero(one_hot)
    )
    assert list(workflow.ranks()) == [2, 3, 0, 1, 4]  # defender third, enterprise fourth, op_server first ...
    assert len({w.one_hot().tobytes() for w in all_workflows()}) == 120


def test_kendall_is_scipys():
    orders = all_workflows()
    for a, b in itertools.product(orders[::7], orders[::5]):
        tau = np.asarray(kendalltau(a.ranks(), b.ranks()))[0]
        assert kendall(a, b) == pytest.approx((1 - tau) / 2)
    ranks = np.array([w.ranks() for w in orders])
    matrix = module.kendall_matrix(ranks, ranks)
    assert np.array_equal(matrix, matrix.T) and (np.diag(matrix) == 0).all()
    assert np.unique(np.round(matrix * 10)).tolist() == list(range(11))


def test_footrule():
    a, b = Workflow.parse("DESHU"), Workflow.parse("EDSHU")
    assert footrule(a, a) == 0 and footrule(a, b) == pytest.approx(2 / 12)
    assert max(footrule(a, w) for w in all_workflows()) == 1
    assert footrule(a, Workflow(a.order[::-1])) == 1
    assert kendall(a, Workflow(a.order[::-1])) == 1


def brute_force_classes(attacked, always) -> set[frozenset[int]]:
    """By the definition: the type named first, for every set of compromised types that can occur."""
    sets = [
        set(always) | set(extra)
        for size in range(len(attacked) + 1)
        for extra in itertools.combinations(attacked, size)
    ]
    groups: dict = {}
    for workflow in all_workflows():
        groups.setdefault(tuple(workflow.first(c) for c in sets), set()).add(workflow.index)
    return {frozenset(group) for group in groups.values()}


@pytest.mark.parametrize("red", ATTACKED)
@pytest.mark.parametrize("compliance", ALWAYS)
def test_classes_are_those_of_the_definition(red, compliance):
    classes = classes_for(red, compliance)
    assert {frozenset(w.index for w in c.members) for c in classes} == brute_force_classes(
        ATTACKED[red], ALWAYS[compliance]
    )
    assert len({c.name for c in classes}) == len(classes)
    assert all(c.representative in c.members for c in classes)


def test_the_collapse_as_derived():
    published = classes_for("meander", "published")
    assert len(published) == 16
    assert max(len(c.members) for c in published) == 30  # user before all three
    assert sorted(len(c.members) for c in classes_for("b_line", "published")) == [20, 20, 20, 20, 40]
    assert len(classes_for("meander", "repaired")) == 24
    assert len(classes_for("b_line", "repaired")) == 6
    assert len(equivalence_classes(TYPES)) == 120
    assert len(equivalence_classes(())) == 1


def test_unknown_agents_and_definitions():
    with pytest.raises(ConfigError, match="red: unknown 'b-line'; did you mean 'b_line'"):
        classes_for("b-line", "published")
    with pytest.raises(ConfigError, match="compliance: unknown 'repared'; did you mean 'repaired'"):
        classes_for("meander", "repared")
    with pytest.raises(ConfigError, match="unknown unit type 'servers'"):
        equivalence_classes(("servers",))
