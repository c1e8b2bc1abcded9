"""The worlds that come with Regimen, by name: `world/NAME`. Jax-free.

An entry is what a map file holds (see `files`), so any of them is a model for a file of your own.
"""

from __future__ import annotations

from regimen.domains.empowerment.worlds.grid_library import GRIDS

WORLDS: dict[str, dict[str, str | float]] = {
    "tiny3": {
        "description": "a robot and a human at the ends of an overgrown corridor of three cells",
        "map": "Hu 1 Ro",
        "fill_density": 1,
        "max_episode_steps": 3,
    },
    "corr5": {
        "description": "a robot between two humans, all stuck in bushes",
        "map": "Hu 1 Ro 1 Hu",
        "fill_density": 1,
        "max_episode_steps": 4,
    },
    "way1x5": {
        "description": "a robot in a human's way: it should step aside",
        "map": "Hu Ro . . .",
        "max_episode_steps": 6,
    },
    "bush1x7": {
        "description": "a corridor of light bushes, a human at each end, the robot nearer to one",
        "map": "Hu 1 Ro 1 1 1 Hu",
        "B": 10,
        "fill_density": 1,
        "max_episode_steps": 12,
    },
    "bush7x3": {
        "description": "the same with a free row above and one below, and bushes that nobody gets through",
        "map": ". . . . . . . / Hu 1 Ro 1 1 1 Hu / . . . . . . .",
        "fill_density": 1,
        "max_episode_steps": 12,
    },
    "asym1x7": {
        "description": "two trapped humans in a corridor; one is nearer, the other gains more",
        "map": "Hu 1 Ro . 1 Hu .",
        "max_episode_steps": 8,
    },
    "free3x3": {
        "description": "a human in a corner behind bushes, which the robot can trample down",
        "map": "Hu 1 . / 1 1 . / . . Ro",
        "max_episode_steps": 6,
    },
    "unequal": {
        "description": "one human walks freely, the other is shut in: whom to help depends on xi",
        "map": "Hu 1 Ro 1 Hu . .",
        "max_episode_steps": 6,
    },
    "two_robots": {
        "description": "two robots and a human between them in a corridor",
        "map": "Ro 1 Hu 1 Ro",
        "max_episode_steps": 4,
    },
}
WORLDS |= GRIDS
