"""Episodes of a solved world: robots and humans act as solved, and people take a new goal when they have got one."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment import equations
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.worlds.world import WorldState


@dataclass(frozen=True)
class SolvedEpisode:
    """T' + 1 states, the last of which nobody acts in."""

    solution: Solution
    states: np.ndarray  # [T' + 1] numbers of the solution's table
    goals: np.ndarray  # [T' + 1, H]
    actions: np.ndarray  # [T', N] of each agent, robots first

    def frames(self) -> list[np.ndarray]:
        """A picture of each moment."""
        vectors, world = self.solution.table.states[self.states], self.solution.world
        moments = (WorldState(s, np.int32(t), g) for t, (s, g) in enumerate(zip(vectors, self.goals)))  # type: ignore[arg-type]
        return [world.render(moment) for moment in moments]  # type: ignore[attr-defined]


def play(solution: Solution, seed: int = 0) -> SolvedEpisode:
    """An episode in which robots do what is most likely, the first of equals; humans draw."""
    world, table, rng = solution.world, solution.table, np.random.default_rng(seed)
    weights, actions, robots = world.goal_weights, world.num_actions, world.robots

    def goals() -> np.ndarray:
        return np.array([rng.choice(len(w), p=w) for w in weights])

    state, goal = 0, goals()
    states, aims, path = [state], [goal], []
    while len(path) < world.max_episode_steps and not table.ended[state]:
        now = solution.at(state, len(path))
        robot = int(np.argmax(now.pi_r.round(9)))
        human = [int(rng.choice(actions, p=now.pi_h[h, g])) for h, g in enumerate(goal)]
        acts = [robot // actions**i % actions for i in range(robots)] + human
        joint = sum(a * actions**i for i, a in enumerate(acts))
        state = int(rng.choice(table.successor[state, joint], p=table.probability(np.array(state))[joint]))
        attained = table.attained[state][np.arange(world.humans), goal]
        goal = np.where(attained, goals(), goal)
        states.append(state)
        aims.append(goal)
        path.append(acts)
    return SolvedEpisode(solution, np.array(states), np.array(aims), np.array(path, int))


def bits(solution: Solution) -> dict[str, list[np.ndarray]]:
    """Power in bits of every state by time: W_h of each human, `aggregate` A and `total` T."""
    theory = solution.theory
    out = {f"W_{h}": [np.log2(x[:, h]) for x in solution.x_h] for h in range(solution.world.humans)}
    for name, values in (("aggregate", solution.u_r), ("total", solution.v_r)):
        out[name] = [np.asarray(equations.bits_of_robot(jnp.asarray(v), theory.xi, theory.eta)) for v in values]
    return out
