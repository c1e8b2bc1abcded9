"""EnvPool's tasks against Gymnasium's own, transition for transition, where EnvPool is installed (regimen[envpool])."""

import math

import gymnasium
import numpy as np
import pytest

from regimen.envs.registry import EnvHandle, resolve
from regimen.errors import ConfigError
from regimen.schedule import Episodes
from regimen.sources.host import HostSource
from regimen.sources.play import play_host

pytest.importorskip("envpool")


def state_of(task: str, obs: np.ndarray) -> np.ndarray:
    """The state of Gymnasium's environment that shows this observation."""
    return obs.astype(np.float64) if task == "CartPole-v1" else np.array([math.atan2(obs[1], obs[0]), obs[2]])


def transitions(handle: EnvHandle, n: int, episodes: int, choose) -> list[tuple]:
    """(episode, obs, action, reward, next_obs, terminated, truncated) of episodes that a source plays."""
    source, before, out = HostSource.of(handle, Episodes(n), n), np.zeros(0), []

    def act(source):
        nonlocal before
        before = source.obs.copy()
        return [choose(row) for row in before]

    for moment in play_host(source, act, 100, episodes):
        names = ("reward", "next_obs", "terminated", "truncated", "valid")
        reward, new, terminated, truncated, valid = (moment.row[name][0] for name in names)
        for i in np.flatnonzero(valid):
            cells = before[i], moment.actions[i], float(reward[i, 0]), new[i].copy()
            out.append((moment.running[int(i)], *cells, bool(terminated[i]), bool(truncated[i])))
    source.close()
    return out


@pytest.mark.parametrize("task, limit", [("CartPole-v1", 500), ("CartPole-v1", 9), ("Pendulum-v1", 30)])
def test_transitions_are_those_of_gymnasium(task, limit):
    """Every transition, the last of an episode included: EnvPool's own reset, which takes a step, never shows."""
    box = task == "Pendulum-v1"
    handle = resolve(f"envpool:{task}", {"max_episode_steps": limit})
    reference, length, endings = gymnasium.make(task).unwrapped, {}, []
    reference.reset(seed=0)
    played = transitions(handle, 3, 12, lambda obs: np.float32([obs[2]]) if box else int(obs[0] > 0))
    for episode, obs, action, reward, new, terminated, truncated in played:
        reference.state, reference.steps_beyond_terminated = state_of(task, obs), None
        expected, pay, over, _, _ = reference.step(action)
        if not (box and abs(new[2]) == 8):  # at the limit of speed EnvPool's pendulum turns before the speed is cut
            np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-5)
        assert reward == pytest.approx(pay, rel=1e-4, abs=1e-5) and terminated == over
        length[episode] = length.get(episode, 0) + 1
        assert truncated == (not over and length[episode] == limit)
        endings += [(terminated, truncated, length[episode])] if terminated or truncated else []
    assert len(endings) == 12
    if limit == 9:  # poles that fall at the very limit are terminated, others cut short
        assert {e for e in endings if e[2] == 9} == {(True, False, 9), (False, True, 9)}


def test_an_episode_starts_from_its_seed_however_many_are_played_at_a_time():
    handle = resolve("envpool:CartPole-v1")
    starts = [{}, {}]
    for n, first in ((2, starts[0]), (5, starts[1])):
        for episode, obs, *_ in transitions(handle, n, 5, lambda obs: 0):
            first.setdefault(episode, obs.tolist())
    assert starts[0] == starts[1] and len(set(map(tuple, starts[0].values()))) == 5


def test_names_and_arguments_are_checked():
    with pytest.raises(ConfigError, match="did you mean 'envpool:CartPole-v1'"):
        resolve("envpool:Cartpole-v1")
    with pytest.raises(ConfigError, match=r"env.threads: .*; did you mean 'num_threads'"):
        resolve("envpool:CartPole-v1", {"threads": 2})
    handle = resolve("envpool:CartPole-v1", {"num_threads": "1"})
    assert (handle.max_episode_steps, handle.return_threshold) == (500, 475.0)
    env = handle.make_host()
    first, again = env.reset(seed=3)[0], env.reset(seed=3)[0]
    assert (first == again).all() and (env.reset()[0] != again).any()
