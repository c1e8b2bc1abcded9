"""Durotaxis: a colony of cells, a growing directed graph, that should reach the stiff edge of its substrate."""

from regimen.config.domains import Domain, EnvEntry

DOMAIN = Domain(
    name="durotaxis",
    description="a colony of cells that grows towards stiff ground",
    environments={
        "durotaxis": EnvEntry(
            "regimen.domains.durotaxis.env:Durotaxis",
            "a colony grows towards stiff ground: each node spawns or is deleted",
        ),
        "durotaxis/ratio": EnvEntry(
            "regimen.domains.durotaxis.env:DurotaxisRatio",
            "the same colony steered by one number, the share deleted",
        ),
    },
    presets=f"{__path__[0]}/presets",
    discount=("shaping_gamma", 0.99),
    tables="regimen.domains.durotaxis.views:draw_table",
)
