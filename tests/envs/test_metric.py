"""What environments declare of their metrics: plain reductions, whole declarations, and what a run directory keeps."""

import json
from typing import ClassVar

import pytest

import regimen
from conflict_env import Crossing
from regimen.envs import registry
from regimen.envs.check import check_env
from regimen.envs.metric import Metric, from_table, metrics_of, reductions_of, to_table, violation_of
from regimen.envs.protocol import native_env
from support import reseal, tiny


def test_the_name_of_a_reduction_is_a_plain_metric():
    declared = {"a": "sum", "b": "max", "c": Metric("min", "lower", "rate", violation=True, label="closeness")}
    metrics = metrics_of(declared)
    assert metrics["a"] == Metric("sum", kind="count") and metrics["b"] == Metric("max")
    assert metrics["c"] is declared["c"] and violation_of(metrics) == "c"
    assert reductions_of(declared) == {"a": "sum", "b": "max", "c": "min"}
    assert violation_of(metrics_of({"los": "max"})) is None, "no name means anything by itself"


def test_a_table_of_metrics_is_read_back_and_what_is_none_is_left_out():
    metrics = {"a": Metric("last"), "b": Metric("max", "lower", "rate", True, "conflicts")}
    assert from_table(json.loads(json.dumps(to_table(metrics)))) == metrics
    newer = to_table(metrics) | {"c": {"reduce": "last", "unit": "m"}}
    assert from_table(newer) == metrics | {"c": Metric("last")}, "a later version may say more"
    for broken in (None, [], "x", {"a": 1}, {"a": {}}, {"a": {"reduce": "median"}}, {"a": {"reduce": [1]}}):
        assert from_table(broken) == {}
    assert from_table({"a": {"reduce": "last", "label": 3}, "b": {"reduce": "last", "kind": "share"}}) == {}


@native_env
class Twice(Crossing):
    """Declares two violations, and one word that is none."""

    metric_reductions: ClassVar = {
        "los": Metric("max", violation=True),
        "reached": Metric("last", violation=True),
        "success": Metric("last", kind="share"),  # type: ignore[arg-type]
    }


def test_the_checker_names_what_is_wrong_with_a_declaration():
    errors = [p.message for p in check_env(Twice()) if p.level == "error"]
    assert any("metric_reductions['success'] is 'share'; use rate, count, value for `kind`" in e for e in errors)
    assert any("los and reached are violations" in e for e in errors)


def test_the_environments_that_come_with_regimen_declare_metrics_that_hold():
    for name in ("airspace/head_on", "durotaxis", "network_defense/workflow", "platform"):
        metrics = registry.resolve(name).metrics
        assert [m.problem() for m in metrics.values()] == [None] * len(metrics) and metrics, name
    assert violation_of(registry.resolve("airspace/head_on").metrics) == "los"


@pytest.mark.usefixtures("compilation_cache", "without_plots")
def test_a_run_directory_says_what_its_metrics_mean(tmp_path):
    run = tiny(tmp_path / "run", 1, Crossing())
    assert run.metrics == metrics_of(Crossing.metric_reductions) and run.metrics["los"].label == "conflicts"
    reseal(tmp_path / "run" / "status.json", metrics={})
    assert regimen.compare(tmp_path / "run", metric="los").lower is False, "a run of an older version"
