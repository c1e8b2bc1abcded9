"""Environments of `test_round_trips.py` that are stepped in Python."""

from regimen.envs.adapters.pettingzoo import ParallelNative
from regimen.envs.probe import TeamProbe


def team() -> ParallelNative:
    """A PettingZoo parallel environment whose agents leave one after the other."""
    return ParallelNative(TeamProbe())
