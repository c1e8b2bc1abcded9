"""A short form of the gate of groups of seeds."""

import pytest

from regimen.runs.directory import program_of


@pytest.mark.long
def test_groups_that_are_killed_go_on_bit_for_bit(tmp_path):
    from faults import groups

    report = groups.run_groups(4, 0, tmp_path)
    assert report["tries"] == 4 and report["losses"] == 0, report
    assert program_of(tmp_path / "ppo-whole" / "seed-1") == (3, False)
