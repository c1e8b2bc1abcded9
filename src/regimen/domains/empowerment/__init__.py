"""Robots that softly maximise the power of humans: the equations, exact solvers of them, and how they are reported."""

from regimen.config.domains import AlgorithmEntry, Domain, EnvEntry, FileKind, Study, Verb

WORLDS = {  # every command imports this; their maps are in worlds/library.yaml, read when one is asked for
    "tiny3": "a robot and a human at the ends of an overgrown corridor of three cells",
    "corr5": "a robot between two humans, all stuck in bushes",
    "way1x5": "a robot in a human's way: it should step aside",
    "bush1x7": "a corridor of light bushes, a human at each end, the robot nearer to one",
    "bush7x3": "the same with a free row above and one below, and bushes that nobody gets through",
    "asym1x7": "two trapped humans in a corridor; one is nearer, the other gains more",
    "free3x3": "a human in a corner behind bushes, which the robot can trample down",
    "unequal": "one human walks freely, the other is shut in: whom to help depends on xi",
    "two_robots": "two robots and a human between them in a corridor",
    "trivial": "a human in a niche behind a rock, which the robot can push on",
    "small": "a room with a niche, in which a human is shut in by a rock",
    "asymmetric_freeing_simple": "two humans shut in by rocks, one in a niche, "
    "one with room of its own: whom to free first",
    "asymmetric_freeing": "the same with longer ways",
    "rock_between": "a rock shuts in a weak human; pushed on, it shuts a stronger one off from a hall",
    "corridor_control": "a robot in the middle of a corridor between two humans, with a niche on either side",
    "simple_circle": "a robot and a human in a ring of eight cells",
    "asymmetric_start": "a robot between two humans in a corridor of seven cells, nearer to one",
    "deactivate_destroy": "a human behind a rock with a button that ends the robot, which the robot can disable",
    "deactivate_pause_or_destroy": "the same with a second button, which pauses the robot",
    "key_room": "a human in a locked room; the robot alone can fetch the key and open the door",
    "small_one_or_three_chambers": "two humans shut in by rocks: one could get to one chamber, the other to three",
    "risky_crossing": "a rock shuts a human off from a way over unsteady ground between lava",
    "between_blocks": "two robots at the ends of a corridor, a human between them behind blocks that anyone can push",
    "hall": "a human in a niche behind a rock, two who walk freely, and two blocks: too many states to list",
    "niches": "many maps, each with a human at a dead end behind a rock, which the robot can push on",
    "locked": "many maps, each with a human behind a locked door, whose key the robot can fetch",
}

DOMAIN = Domain(
    name="empowerment",
    description="robots that leave humans as much power as they can",
    environments={
        f"world/{name}": EnvEntry(f"world:{name}", f"humans and robots: {description}")
        for name, description in WORLDS.items()
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
            "Use it for worlds of humans and robots (world/NAME), also those too large for `regimen solve`.",
        )
    },
    presets=f"{__path__[0]}/presets",
    names=f"{__path__[0]}/names.yaml",
    answers=f"{__path__[0]}/answers.yaml",
    hint="regimen solve WORLD --plots draws power over the map; the chart of human power is among the curves.",
    verbs={
        "solve": Verb(
            "WORLD",
            "solve a small world of humans and robots exactly",
            "regimen.domains.empowerment.verbs:SolveArgs",
            words="envs",
        ),
        "validate": Verb(
            "RUN",
            "compare what an empowerment run learned with the exact values",
            "regimen.domains.empowerment.verbs:ValidateArgs",
            group="Look at runs",
            words="envs",
        ),
        "rollouts": Verb(
            "RUN",
            "compare a robot that learned empowerment with others by episodes",
            "regimen.domains.empowerment.verbs:RolloutsArgs",
            group="Look at runs",
            words="envs",
        ),
    },
    studies={
        "empowerment": Study(
            "each documented choice of learning human power, against the exact values",
            "regimen.domains.empowerment.verbs:EmpowermentArgs",
            "regimen.domains.empowerment.study",
            "regimen study empowerment world/corr5 --parts ramp,source --seeds 3",
        )
    },
    functions={
        "solve": "regimen.domains.empowerment.api:solve",
        "validate": "regimen.domains.empowerment.validate:validate",
        "rollouts": "regimen.domains.empowerment.beside:beside",
    },
)
