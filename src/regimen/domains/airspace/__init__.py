"""Airspace: aircraft under one shared policy that should reach their waypoints and stay 5 NM apart."""

from regimen.config.domains import Domain, EnvEntry, FileKind, Verb

SCENARIOS = {
    "head_on": "two towards each other",
    "parallel": "three in trail",
    "t_formation": "two up the stem of a T, one along its arm",
    "canonical_crossing": "four across one point",
    "converging": "four to waypoints close to each other",
    "chase_2x2": "two lanes of two in trail",
    "chase_3p1": "three in trail, one far away",
    "chase_4all": "four in trail",
    "cross_2x2": "two crossings side by side",
    "cross_3p1": "three across one point, one far away",
    "cross_4all": "four across one point, from further away",
    "merge_2x2": "two pairs that merge",
    "merge_3p1": "three that merge, one far away",
    "merge_4all": "four that merge",
    "mixed": "one of the 14 scenarios in each episode",
    "random": "a drawn scenario in each episode",
}

ONLY_CLEAN = ("progress_reward", "reach_reward", "entry_penalty", "depth_penalty", "margin")  # of the reward
ONLY_CLEAN += ("action_cost", "time_cost", "team_weight")

DOMAIN = Domain(
    name="airspace",
    description="aircraft that must stay apart",
    environments={
        f"airspace/{name}": EnvEntry(f"airspace:{name}", f"aircraft that must stay apart: {text}")
        for name, text in SCENARIOS.items()
    },
    files={
        "airspace": FileKind(
            "regimen.domains.airspace.env:Airspace",
            "a scenario of the airspace",
            "FILE.json",
            "a scenario of your own; `regimen scenario new` writes one to start from",
            tuned=True,
        ),
        "bluesky": FileKind(
            "regimen.domains.airspace.bluesky:make",
            "a scenario flown by BlueSky",
            "SCENARIO",
            "an airspace scenario (a name, or FILE.json) flown by BlueSky; one in each process",
        ),
    },
    presets=f"{__path__[0]}/presets",
    names=f"{__path__[0]}/names.yaml",
    answers=f"{__path__[0]}/answers.yaml",
    discount=("gamma", 0.995),
    moot={("reward", "compat"): ONLY_CLEAN},
    tables="regimen.domains.airspace.views:draw_table",
    hint="Train with --log.trajectories to keep the flights of every evaluation.",
    verbs={
        "analyse": Verb(
            "RUN...",
            "measure the safety of airspace policies, also under shifts",
            "regimen.domains.airspace.verbs.analyse",
            group="Look at runs",
            examples=("regimen analyse runs/first --episodes 50",),
        ),
        "scenario": Verb(
            "ACTION [NAME]",
            "write, look at or list airspace scenarios",
            "regimen.domains.airspace.verbs.scenario",
            group="What there is",
            examples=("regimen scenario list",),
        ),
    },
    functions={
        "analyse": "regimen.domains.airspace.analysis.analysis:analyse",
        "observe": "regimen.domains.airspace.traffic:observe_traffic",
        "commands": "regimen.domains.airspace.traffic:commands",
    },
)
