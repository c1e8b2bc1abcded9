"""Robots that softly maximise the power of humans: the equations, exact solvers of them, and how they are reported."""

from regimen.config.domains import AlgorithmEntry, Domain, EnvEntry, FileKind, Study, Verb
from regimen.domains.empowerment.worlds.files import WORLDS

DOMAIN = Domain(
    name="empowerment",
    description="robots that leave humans as much power as they can",
    environments={
        f"world/{name}": EnvEntry(f"world:{name}", f"humans and robots: {entry['description']}")
        for name, entry in WORLDS.items()
    },
    files={
        "world": FileKind(
            "regimen.domains.empowerment.worlds.files:load",
            "a map of a world",
            "FILE",
            "a map of your own: rows of Ro, Hu, densities and '.', or YAML with fields as well",
        )
    },
    algorithms={
        "empowerment": AlgorithmEntry(
            "regimen.domains.empowerment.hyperparameters:EmpowermentConfig",
            "regimen.domains.empowerment.learner.algorithm:Empowerment",
            "A robot that softly maximises human power, learned from a model of the world or by acting in it.",
            "Worlds of humans and robots (world/NAME), also those too large for `regimen solve`.",
        )
    },
    presets=f"{__path__[0]}/presets",
    verbs={
        "solve": Verb(
            "WORLD",
            "solve a small world of humans and robots exactly",
            "regimen.domains.empowerment.verbs.solve",
            words="envs",
        ),
        "validate": Verb(
            "RUN",
            "compare what an empowerment run learned with the exact values",
            "regimen.domains.empowerment.verbs.validate",
            group="Look at runs",
            words="envs",
        ),
    },
    studies={
        "empowerment": Study(
            "each documented choice of learning human power, against the exact values",
            "regimen.domains.empowerment.verbs.study:EmpowermentArgs",
            "regimen.domains.empowerment.study",
            "regimen study empowerment world/corr5 --parts ramp,clearing --seeds 3",
        )
    },
    functions={
        "solve": "regimen.domains.empowerment.api:solve",
        "validate": "regimen.domains.empowerment.validate:validate",
    },
)
