"""Safety analysis of airspace policies: `analyse` flies, measures and writes; the parts can be used on their own."""

from regimen.domains.airspace.analysis.analysis import Analysis, analyse

__all__ = ["Analysis", "analyse"]
