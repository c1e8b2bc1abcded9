"""`regimen.empowerment.solve`: a world by name, file or object, and theory parameters by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regimen.domains.empowerment import exact, tabular
from regimen.domains.empowerment.reach import LIMIT
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.theory import Theory
from regimen.domains.empowerment.worlds.world import World
from regimen.envs.registry import resolve
from regimen.errors import ConfigError, EnvError, nearest

MAPS = (".yaml", ".yml", ".txt", ".map")  # how names of map files end


def solve(
    world: str | Path | World,
    *,
    stationary: bool = False,
    env_args: Mapping[str, object] | None = None,
    limit: int = LIMIT,
    **theory: Any,
) -> Solution:
    """Solve a world exactly and return all values and the robot's policy: `solve("world/way1x5", beta_r=5)`.

    Args:
        world: a name, a map file, `module:factory` or a `World`.
        stationary: whether to solve it without a time limit.
        env_args: settings of the world.
        limit: the largest number of states that is enumerated.
        **theory: parameters of the theory, such as `beta_r`, `gamma_h`, `zeta`, `xi`, `eta`.
    """
    names = Theory.__dataclass_fields__
    for name in theory:
        if name not in names:
            raise ConfigError(f"solve: there is no parameter '{name}'{nearest(name, names)}")
    return (tabular if stationary else exact).solve(make_world(world, env_args), Theory(**theory), limit)


def make_world(world: str | Path | World, env_args: Mapping[str, object] | None = None) -> World:
    """A world from its name, its map file or itself."""
    if isinstance(world, (str, Path)) and ":" not in str(world):
        if Path(world).is_file():
            world = f"world:{world}"
        elif isinstance(world, Path) or Path(world).suffix in MAPS:
            raise EnvError(
                f"{world}: there is no such file; give a map file, or a name (`regimen envs` lists world/...)"
            )
    handle = resolve(str(world) if isinstance(world, Path) else world, env_args)
    if not isinstance(handle.native, World):
        raise ConfigError(f"{handle.id} is no world of humans and robots; give one (`regimen envs` lists world/...)")
    return handle.native
