"""Durotaxis: a colony of cells, a growing directed graph, that should reach the stiff edge of its substrate."""

from regimen.envs.durotaxis.env import Durotaxis, DurotaxisRatio, State

__all__ = ["Durotaxis", "DurotaxisRatio", "State"]
