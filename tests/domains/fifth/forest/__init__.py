"""A domain of another package: what a fifth domain consists of, and all of it."""

from regimen.config.domains import Domain, EnvEntry, Verb

DOMAIN = Domain(
    name="forest",
    description="trees that should be planted where there is room",
    environments={"forest": EnvEntry("forest.env:Forest", "plant a tree where there is room")},
    presets=f"{__path__[0]}/presets",
    verbs={"count-trees": Verb("NUMBER", "say how many trees there are", "forest.count_trees", group="What there is")},
    tables="forest.views:draw_table",
    functions={"count": "forest.count_trees:count"},
    discount=("growth_gamma", 0.99),
)
