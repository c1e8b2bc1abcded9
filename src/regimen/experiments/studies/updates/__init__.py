"""When to update, compared with numbers: `updates.run("cartpole")`, or `regimen study updates`."""

from regimen.experiments.studies.updates.study import UpdatesStudy, run

__all__ = ["UpdatesStudy", "run"]
