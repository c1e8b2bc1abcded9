"""`--distributed HOST:PORT`: one run on several processes."""

from __future__ import annotations

from typing import Protocol

from regimen.errors import UsageError


class DistributedFlags(Protocol):
    """The flags that verbs with `--distributed` share."""

    @property
    def distributed(self) -> str | None: ...
    @property
    def process_id(self) -> int: ...
    @property
    def num_processes(self) -> int: ...


def join_others(flags: DistributedFlags, device: str) -> bool:
    """Meet the other processes of `--distributed` and return whether one of them speaks for this one."""
    if flags.distributed is None:
        if flags.process_id or flags.num_processes != 1:
            raise UsageError("--process-id and --num-processes need --distributed HOST:PORT, where process 0 listens")
        return False

    from regimen.engines import multihost

    multihost.join(flags.distributed, flags.process_id, flags.num_processes, device)
    return flags.process_id > 0
