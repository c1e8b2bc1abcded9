"""What collecting more episodes before an update buys: `batching.run("cartpole")`, or `regimen study batching`."""

from regimen.experiments.studies.batching.study import BatchingStudy, run

__all__ = ["BatchingStudy", "run"]
