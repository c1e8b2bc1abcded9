"""Checking a Gymnasium or PettingZoo environment by random steps."""

import contextlib
import io
import warnings

import gymnasium
import numpy as np

from regimen import spaces
from regimen.envs.adapters.gymnasium import read_components, read_mask
from regimen.envs.adapters.pettingzoo import Team
from regimen.envs.check.members import MOST_REWARD, check_mask, check_member, same
from regimen.envs.check.report import Report, location
from regimen.envs.imports import one_line
from regimen.envs.registry import EnvHandle
from regimen.errors import EnvError, RegimenError
from regimen.types import PyTree


def check_host(handle: EnvHandle, report: Report, steps: int, seed: int) -> None:
    assert handle.make_host is not None
    try:
        env = handle.make_host()
    except EnvError as e:
        return report.error("make", str(e))
    if handle.agents:
        return check_team(env, report, steps)
    try:
        first = take_steps(env, handle, report, steps, seed)
        if not report.failed and not same(first, take_steps(env, handle, Report(), min(steps, 50), seed)):
            report.warn(
                "seeding",
                f"two runs from reset(seed={seed}) with equal actions differ; call super().reset(seed=seed) and draw "
                "from self.np_random, or results cannot be repeated",
            )
    finally:
        env.close()
    return None


def check_team(team: Team, report: Report, steps: int) -> None:
    """PettingZoo's own test of a parallel environment."""
    from pettingzoo.test import parallel_api_test

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(io.StringIO()):
                parallel_api_test(team.env, num_cycles=steps)
        for each in dict.fromkeys(str(w.message) for w in caught):
            report.warn(each, f"PettingZoo's test warns: {each}")
    except Exception as e:
        report.error("parallel_api_test", f"PettingZoo's test fails: {one_line(e)}{location(e)}")
    finally:
        team.close()


def take_steps(env: gymnasium.Env, handle: EnvHandle, report: Report, steps: int, seed: int) -> list[PyTree]:
    """Take random steps and return what was observed, to compare a second play with."""
    history: list[PyTree] = []
    ended = False
    handle.action_space.seed(seed)
    mask = begin(env, handle, report, history, seed)
    for _ in range(steps):
        if report.failed:
            return history
        action = spaces.sample(handle.action_space, mask)
        try:
            out = env.step(action)
        except Exception as e:
            report.error("step", f"step({action!r}) raised {one_line(e)}{location(e)}")
            return history
        if not isinstance(out, tuple) or len(out) != 5:
            size = f" of {len(out)}" if isinstance(out, tuple) else ""
            what = f"{type(out).__name__}{size}"
            report.error("step", f"step returned a {what}; it must be (obs, reward, terminated, truncated, info)")
            return history
        obs, reward, terminated, truncated, info = out
        history.append((obs, reward))
        check_member(handle.observation_space, obs, "the observation of step", report)
        check_reward(reward, report)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                report.error(name, f"step returned {name} = {flag!r} ({type(flag).__name__}); it must be a bool")
        mask = check_info(info, handle, "step", report)
        if isinstance(info, dict) and not report.failed:
            try:
                read_components(reward, info, handle.reward_components)
            except EnvError as e:
                report.error("components", str(e))
        if not report.failed and (terminated or truncated):
            ended = True
            mask = begin(env, handle, report, history)
    if not ended and not handle.max_episode_steps:
        report.warn(
            "endless",
            f"no episode ended in {steps} random steps and no time limit is known; set --env.max_episode_steps N, or "
            "rollout.episodes may wait for ever",
        )
    return history


def begin(
    env: gymnasium.Env, handle: EnvHandle, report: Report, history: list[PyTree], seed: int | None = None
) -> np.ndarray | None:
    """Reset the environment and return the action mask of its first state, if it has one."""
    try:
        out = env.reset(seed=seed)
    except Exception as e:
        hint = "; give reset the keyword arguments seed and options" if isinstance(e, TypeError) else ""
        return report.error("reset", f"reset(seed={seed}) raised {one_line(e)}{location(e)}{hint}")
    if not isinstance(out, tuple) or len(out) != 2:
        return report.error("reset", f"reset returned a {type(out).__name__}; it must be (obs, info)")
    obs, info = out
    history.append(obs)
    check_member(handle.observation_space, obs, "the observation of reset", report)
    return check_info(info, handle, "reset", report)


def check_reward(reward: object, report: Report) -> None:
    try:
        value = np.asarray(reward)
    except ValueError:  # ragged
        value = np.asarray(None)
    if value.dtype.kind not in "biuf":
        return report.error("reward", f"step returned the reward {reward!r}; it must be a number")
    if value.size != 1:
        return report.error("reward", f"step returned a reward of shape {value.shape}; it must be one number")
    if not np.isfinite(value).all():
        return report.error("reward", f"step returned the reward {value}; it must be finite")
    if abs(value).max() > MOST_REWARD:
        return report.error("reward", too_large(float(value.flat[0])))
    if value.ndim:
        report.warn("reward", f"step returned the reward as an array of shape {value.shape}; return float(reward)")
    return None


def too_large(reward: float) -> str:
    return f"step returned the reward {reward:g}, whose square overflows float32; divide rewards until they are about 1"


def check_info(info: object, handle: EnvHandle, where: str, report: Report) -> np.ndarray | None:
    """The action mask in `info`, if any."""
    if not isinstance(info, dict):
        return report.error("info", f"{where} returned info = {info!r}; it must be a dict, empty or not")
    mask, where = read_mask(info), f"info['action_mask'] of {where}"
    if mask is None:
        return None
    try:
        row = spaces.mask_row(handle.action_space, mask) if isinstance(mask, (dict, tuple)) else mask
    except (RegimenError, ValueError) as e:
        return report.error("mask", f"{where}: {e}")
    return row if check_mask(row, handle, where, report) else None
