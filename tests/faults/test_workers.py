"""Short forms of the gates of Ray."""

import pytest

pytest.importorskip("ray")


@pytest.mark.long
def test_a_run_survives_its_workers(tmp_path):
    from faults import workers

    report = workers.run_workers(len(workers.FAULTS), 0, tmp_path)
    assert report["losses"] == 0, report


@pytest.mark.long
def test_a_run_whose_cluster_dies_says_so_and_is_saved(tmp_path):
    from faults import workers

    report = workers.run_cluster(2, 0, tmp_path)
    assert report["losses"] == 0, report
