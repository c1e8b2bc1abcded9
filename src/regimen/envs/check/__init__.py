"""What is wrong with an environment, before training finds out: `regimen check-env ENV`.

Every message says what is wrong, where, and how to mend it. An error would stop or spoil training; a warning may.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from regimen.config.calls import answered
from regimen.envs.check.host import check_host
from regimen.envs.check.members import check_spaces
from regimen.envs.check.native import check_native
from regimen.envs.check.report import Problem, Report
from regimen.envs.registry import EnvHandle, resolve
from regimen.errors import EnvError

if TYPE_CHECKING:
    from regimen.envs.registry import EnvLike

__all__ = ["Problem", "check_env"]


@answered
def check_env(
    env: EnvLike | EnvHandle, env_args: Mapping[str, object] | None = None, steps: int = 300, seed: int = 0
) -> list[Problem]:
    """Step an environment at random and return what is wrong with it: errors first, then warnings.

    Args:
        env: anything that `make_env` takes.
        env_args: settings of the environment.
        steps: how many steps to take.
        seed: what they are drawn from.
    """
    report = Report()
    if isinstance(env, EnvHandle):
        handle = env
    else:
        try:
            handle = resolve(env, env_args)
        except EnvError as e:
            return [Problem("error", str(e))]
    check_spaces(handle, report)
    if not report.failed:
        (check_native if handle.native is not None else check_host)(handle, report, steps, seed)
    return report.problems
