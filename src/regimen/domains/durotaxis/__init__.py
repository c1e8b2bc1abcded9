"""Durotaxis: a colony of cells, a growing directed graph, that should reach the stiff edge of its substrate."""

from regimen.domains.durotaxis.env import Durotaxis, DurotaxisRatio, State

__all__ = ["Durotaxis", "DurotaxisRatio", "State"]
