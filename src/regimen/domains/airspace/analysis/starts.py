"""Where episodes start: each scenario many times, a little perturbed, so that episodes are not copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from regimen.domains.airspace.files import SPEEDS, ScenarioFile
from regimen.domains.airspace.state import Scenario


@dataclass(frozen=True)
class Jitter:
    """How far a start may differ from the file, for each aircraft on its own: within a disc, and uniformly within
    these bounds. With a disc of 0.5 NM, starts 6 NM apart stay at least 5 NM apart."""

    position_nm: float = 0.5
    heading_deg: float = 2.0
    speed_kt: float = 5.0

    @property
    def any(self) -> bool:
        return bool(self.position_nm or self.heading_deg or self.speed_kt)

    def scaled(self, factor: float) -> Jitter:
        return Jitter(self.position_nm * factor, self.heading_deg * factor, self.speed_kt * factor)

    def draw(self, episodes: int, aircraft: int, seed: int) -> np.ndarray:
        """[episodes, aircraft, 4]: north, east, heading, speed. Row e depends on the seed and e alone, and its first
        aircraft are the same for any number of them, so configurations can be compared episode by episode."""
        rng = np.random.default_rng([seed, 5])
        u = rng.random((episodes, 16, 4))[:, :aircraft]
        radius, angle = self.position_nm * np.sqrt(u[..., 0]), 2 * np.pi * u[..., 1]
        spread = 2 * u[..., 2:] - 1
        out = [radius * np.cos(angle), radius * np.sin(angle), self.heading_deg * spread[..., 0]]
        return np.stack([*out, self.speed_kt * spread[..., 1]], -1)

    def __str__(self) -> str:
        return f"within {self.position_nm:g} NM, {self.heading_deg:g} deg, {self.speed_kt:g} kt"


def starts(
    files: Sequence[ScenarioFile], episodes: int, jitter: Jitter, seed: int, aircraft: int | None = None
) -> tuple[Scenario, np.ndarray]:
    """Scenarios [len(files) * episodes, ...] in numpy, the episodes of a file next to each other; and the numbers of
    the episodes. Episode e of every file has the same perturbation."""
    n = max(len(f.agents) for f in files) if aircraft is None else aircraft
    one = [f.arrays(n) for f in files]
    stacked = jax.tree.map(lambda *rows: np.stack([np.asarray(r) for r in rows]), *one)
    flat = jax.tree.map(lambda x: np.repeat(x, episodes, 0), stacked)
    offsets = np.tile(jitter.draw(episodes, n, seed), (len(files), 1, 1))  # [C, N, 4]
    offsets = np.where(flat.present[..., None], offsets, 0.0)
    moved = flat.replace(
        north=(flat.north + offsets[..., 0]).astype(np.float32),
        east=(flat.east + offsets[..., 1]).astype(np.float32),
        heading=((flat.heading + offsets[..., 2]) % 360).astype(np.float32),
        cas=np.clip(flat.cas + offsets[..., 3], *SPEEDS).astype(np.float32),
    )
    return moved, np.tile(np.arange(episodes), len(files))
