"""Examples at the end of `--help`, of the verbs whose description has none. A test reads every one of them."""

from regimen.config.domains import domains

EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "regimen train pendulum --algo sac --seeds 3 --out runs/first",
        "regimen train cartpole --preset fast --stop.target-return 475",
    ),
    "resume": ("regimen resume runs/first", "regimen resume runs/first --total-steps 2e6 --out runs/longer"),
    "evaluate": ("regimen evaluate runs/first --episodes 100", "regimen evaluate cartpole --policy random"),
    "collect": ("regimen collect runs/first --episodes 500 --out data/first",),
    "compare": ("regimen compare runs/a runs/b", "regimen compare runs/sweep --by algo.lr --out compared"),
    "plot": ("regimen plot runs/first",),
    "dashboard": ("regimen dashboard", "regimen dashboard runs/sweep --port 0 --open"),
    "report": ("regimen report runs/first",),
    "replay": ("regimen replay runs/first --episodes 3",),
    "export": ("regimen export runs/first --out policies/first", "regimen export runs/first --format stablehlo"),
    "envs": ("regimen envs", "regimen envs cartpole"),
    "algorithms": ("regimen algorithms", "regimen algorithms ppo"),
    "presets": ("regimen presets", "regimen presets fast"),
    "check-env": ("regimen check-env cartpole", "regimen check-env mypackage.envs:make_env"),
    **{name: verb.examples for domain in domains().values() for name, verb in domain.verbs.items()},
}
