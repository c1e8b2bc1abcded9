"""Defending a network of 13 hosts against a scripted intruder (CAGE challenge 2, scenario 2), simulated natively."""

from regimen.config.domains import Domain, EnvEntry, ExportForm, Study, Verb

DOMAIN = Domain(
    name="network_defense",
    answers=f"{__path__[0]}/answers.yaml",
    description="hosts that are defended against an intruder",
    environments={
        "network_defense": EnvEntry(
            "regimen.domains.network_defense.env:NetworkDefense", "defend 13 hosts against an intruder"
        ),
        "network_defense/workflow": EnvEntry(
            "regimen.domains.network_defense.env:NetworkDefenseWorkflow",
            "the same, with a reward for repairing hosts in a given order",
        ),
    },
    presets=f"{__path__[0]}/presets",
    discount=("alignment_gamma", 0.99),
    tables="regimen.domains.network_defense.views:draw_table",
    verbs={
        "search": Verb(
            "ENV",
            "find the best workflow under a gate on compliance",
            "regimen.domains.network_defense.verbs",
            words="envs",
        )
    },
    exports={
        "cage-agent": ExportForm(
            "an agent of numpy alone for CybORG's evaluation of the CAGE challenge 2",
            "regimen.domains.network_defense.agent_export:write_agent",
        )
    },
    leaderboard="regimen.domains.network_defense.leaderboard:play",
    studies={
        "updates": Study(
            "when to update, side by side: per episode, per N, parallel, from a replay",
            "regimen.domains.network_defense.study:UpdatesArgs",
            "regimen.experiments.studies.updates",
            "regimen study updates network_defense --quick",
        )
    },
)
