"""`TrajectoryBuffer`, for people with their own loop: episodes in; returns, advantages and minibatches out.

Numpy in and numpy out, JAX only where it is asked for, so that a program without JAX can use it as well. The recursion
is that of `regimen.returns.gae`, here one episode at a time and in float64.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from regimen.config.calls import answered
from regimen.config.names import Answering
from regimen.sources.trajectory_rows import (
    DTYPES,
    FINITE,
    SCALAR,
    MinibatchRows,
    PyTree,
    TrajectoryError,
    check_components,
    flatten,
    map_tree,
    paths_of,
    read_fraction,
    read_generator,
    require_components,
)
from regimen.words import Figures


@dataclass(frozen=True)
class _Episode:
    columns: dict[str, np.ndarray]  # path -> [T, ...]
    final: dict[str, float]  # path of a value -> V after the last step, 0 where the episode terminated
    length: int
    terminated: bool
    success: bool | None


@answered
class TrajectoryBuffer(Answering):
    """Collect episodes step by step or whole, then learn from all of their steps at once.

    States, actions, log-probabilities, masks and extras may be nested dicts and tuples. Rewards and values are numbers,
    or dicts by component: with both by component every component has its own returns and advantages; with values as
    numbers the components of a reward are added up. `seed` decides the order of minibatches.
    """

    def __init__(self, seed: int = 0):
        self._rng = read_generator(seed)
        self.clear()

    def clear(self) -> None:
        """Forget every step, an open episode included, and what a step looks like."""
        self._episodes: list[_Episode] = []
        self._open: list[dict[str, np.ndarray]] | None = None
        self._skeleton: dict[str, PyTree] | None = None  # a step, with the path of each array in its place
        self._shapes: dict[str, tuple[int, ...]] = {}  # path -> shape at one step
        self._rows: MinibatchRows | None = None
        self._outdated = False
        self.metrics: dict[str, float] = {}  # of the advantages that an algorithm has computed, such as its weights

    def __len__(self) -> int:
        """Steps, those of an open episode included."""
        return sum(episode.length for episode in self._episodes) + len(self._open or ())

    def __repr__(self) -> str:
        return f"TrajectoryBuffer({self.num_episodes} episodes, {len(self)} steps)"

    @property
    def num_episodes(self) -> int:
        """Finished episodes."""
        return len(self._episodes)

    def start_episode(self) -> None:
        self._refuse_open("start_episode")
        self._open = []

    def add_step(
        self, state: PyTree, action: PyTree, reward: PyTree, value: PyTree, log_prob=None, mask=None, **extras: PyTree
    ) -> None:
        """One step: the state acted in, the action as sampled, and V(state). Arrays are copied.

        `mask` is True where a choice was allowed. What one step has, every step must have."""
        if self._open is None:
            raise TrajectoryError("add_step: no episode is open; call start_episode() first")
        step = {"state": state, "action": action, "reward": reward, "value": value}
        step |= {"log_prob": log_prob, "mask": mask, "extras": extras}
        skeleton, row = self._read(step, lead=0, start=len(self._open))
        self._open.append(row)
        self._keep(skeleton, row, lead=0)

    def finish_episode(
        self,
        final_value: PyTree = 0.0,
        terminated: bool = False,
        success: bool | None = None,
        *,
        final_values: PyTree = None,
    ) -> None:
        """Close the open episode. `final_value` (or `final_values`) is V of the true final observation, which a
        truncated episode goes on with; where it `terminated` there is nothing after the end, whatever it says."""
        final_value = final_value if final_values is None else final_values
        if self._open is None:
            raise TrajectoryError("finish_episode: no episode is open; call start_episode() first")
        if not self._open or self._skeleton is None:
            raise TrajectoryError(f"finish_episode: episode {self.num_episodes} has no steps; call add_step() first")
        final = self._final(self._skeleton, final_value, bool(terminated))
        columns = {path: np.stack([row[path] for row in self._open]) for path in self._shapes}
        success = None if success is None else bool(success)
        self._episodes.append(_Episode(columns, final, len(self._open), bool(terminated), success))
        self._open = None

    def add_episode(
        self,
        states: PyTree,
        actions: PyTree = None,
        rewards: PyTree = None,
        values: PyTree = None,
        final_value: PyTree = 0.0,
        terminated: bool = False,
        log_probs: PyTree = None,
        masks: PyTree = None,
        success: bool | None = None,
        *,
        final_values: PyTree = None,
        **extras: PyTree,
    ) -> None:
        """A whole episode at once, or one dict of these arguments. Each holds arrays with a leading axis of steps
        (nested where a step is), or is a list with one entry per step; `final_values` is another name of
        `final_value`."""
        self._refuse_open("add_episode")
        if actions is None and isinstance(states, Mapping) and {"states", "actions"} <= set(states):
            return self.add_episode(**states)
        final_value = final_value if final_values is None else final_values
        if np.ndim(terminated) or (not isinstance(final_value, Mapping) and np.ndim(final_value)):
            raise TrajectoryError(
                "add_episode: final_value and terminated are one value each, after values; give log_probs, "
                "final_value, terminated and success by name"
            )
        for name, x in (("actions", actions), ("rewards", rewards), ("values", values)):
            if x is None:
                raise TrajectoryError(f"add_episode: no {name}; give states, actions, rewards and values")
        rewards, values = (list(x) if isinstance(x, tuple) else x for x in (rewards, values))
        step = {"state": states, "action": actions, "reward": rewards, "value": values}
        step |= {"log_prob": log_probs, "mask": masks}
        step = {name: self._transpose(name, x) for name, x in step.items()}
        step["extras"] = {name: self._transpose(f"extras[{name!r}]", x) for name, x in extras.items()}
        skeleton, columns = self._read(step, lead=1, start=0)
        final = self._final(skeleton, final_value, bool(terminated))
        length = len(next(columns[path] for path in columns if path.startswith("reward")))
        success = None if success is None else bool(success)
        self._episodes.append(_Episode(columns, final, length, bool(terminated), success))
        self._keep(skeleton, columns, lead=1)

    def compute_returns_and_advantages(
        self, gamma: float, gae_lambda: float, normalize_advantage: bool = False
    ) -> None:
        """GAE of every episode (Schulman et al. 2016, eq. 16), and returns = advantages + values.

        `normalize_advantage` shifts and scales them to mean 0 and deviation 1 over the whole buffer. By component, each
        has its mean taken off and all are divided by the deviation of `total`, so that they still add up to it.
        """
        gamma, gae_lambda = read_fraction("gamma", gamma), read_fraction("gae_lambda", gae_lambda)
        if self._open is not None:
            open_for = f"episode {self.num_episodes} is still open after {len(self._open)} steps"
            raise TrajectoryError(f"compute_returns_and_advantages: {open_for}; call finish_episode() first")
        if not self._episodes or self._skeleton is None:
            raise TrajectoryError("compute_returns_and_advantages: the buffer is empty; finish an episode first")
        columns = self._merge()
        reward, value = self._skeleton["reward"], self._skeleton["value"]
        heads = value if isinstance(value, dict) else {"total": value}
        advantages, returns = {}, {}
        for name, path in heads.items():
            rewards = [reward[name]] if isinstance(value, dict) else paths_of(reward)
            parts = [_gae(e, rewards, path, gamma, gae_lambda) for e in self._episodes]
            advantages[name] = np.concatenate(parts)
            returns[name] = advantages[name] + columns[path]
        if normalize_advantage:
            total = np.sum(list(advantages.values()), axis=0)
            deviation = np.sqrt(total.var() + 1e-8) + 1e-8 if len(total) > 1 else 1.0
            advantages = {name: (x - x.mean()) / deviation for name, x in advantages.items()}
        if isinstance(value, dict):
            advantages["total"] = np.sum(list(advantages.values()), axis=0)
        else:
            advantages, returns = advantages["total"], returns["total"]

        step = {name: map_tree(lambda _, path: columns[path], x) for name, x in self._skeleton.items()}

        def single(tree: PyTree) -> PyTree:
            return map_tree(lambda _, x: x.astype(np.float32), tree)

        self._rows = MinibatchRows(
            step["state"],
            step["action"],
            step["log_prob"],
            *map(single, (step["value"], returns, advantages)),
            masks=step["mask"],
            extras=step["extras"],
            rewards=single(step["reward"]),
        )

    compute_returns_and_advantages_for_all_episodes = compute_returns_and_advantages  # by the name that others have

    def ends(self) -> tuple[np.ndarray, PyTree]:
        """Of the finished episodes: the row of each one's last step [N], and V after it [N], 0 where the episode
        terminated; by component where the values are."""
        value = self._skeleton["value"] if self._skeleton else "value"
        finals = map_tree(lambda _, path: np.array([e.final[path] for e in self._episodes], np.float32), value)
        return np.cumsum([e.length for e in self._episodes]) - 1, finals

    def weigh(self, returns: PyTree, advantages: np.ndarray, weights: np.ndarray, metrics: Mapping[str, float]) -> None:
        """Take the returns and advantages [M, K] that an algorithm has computed, its weights [K] of the latter, and
        what it measured."""
        assert self._rows is not None, "compute_returns_and_advantages() comes first"
        self.metrics = dict(metrics)
        total = advantages[:, 0]
        if isinstance(returns, dict):
            by_name = {name: advantages[:, k] for k, name in enumerate(returns)}
            total = by_name | {"total": advantages @ weights}
        column = np.broadcast_to(weights, advantages.shape)
        self._rows = replace(self._rows, returns=returns, advantages=total, weights=column)

    def rows(self, as_jax: bool = False) -> MinibatchRows:
        """Every step, in the order in which they were added."""
        return self.create_minibatches(max(len(self), 1), shuffle=False, as_jax=as_jax)[0]

    def create_minibatches(
        self,
        size: int | None = None,
        seed: int | np.random.Generator | None = None,
        shuffle: bool = True,
        as_jax: bool = False,
        *,
        minibatch_size: int | None = None,
    ) -> list[MinibatchRows]:
        """One epoch: every step exactly once, in ceil(M / size) minibatches whose sizes differ by at most one; a size
        (or `minibatch_size`) above the number of steps means one full batch. `seed` is a number or a numpy Generator;
        without one the buffer's own goes on, so that every epoch has another order."""
        size = minibatch_size if size is None else size
        try:
            size = operator.index(size)  # type: ignore[arg-type]
        except TypeError:
            raise TrajectoryError(f"size: {size!r} is not a whole number") from None
        if size < 1:
            raise TrajectoryError(f"size: {size} must be at least 1")
        if self._rows is None:
            why = "steps were added, the advantages are out of date" if self._outdated else "no advantages yet"
            raise TrajectoryError(f"{why}: call compute_returns_and_advantages() first")
        rows, count = self._rows, len(self._rows)
        rng = self._rng if seed is None else read_generator(seed)
        order = rng.permutation(count) if shuffle else np.arange(count)
        batches = [rows.map(lambda x, part=part: x[part]) for part in np.array_split(order, -(-count // size))]
        return [batch.to_jax() for batch in batches] if as_jax else batches

    def stats(self) -> Figures:
        """Of the finished episodes. What has no data is absent: everything but the counts in an empty buffer,
        `success_rate` where no episode says whether it succeeded. Components are `reward/NAME`, as in a run's rows."""
        steps = sum(e.length for e in self._episodes)
        out: dict[str, float] = {"num_episodes": self.num_episodes, "total_steps": steps}
        if not self._episodes or self._skeleton is None:
            return Figures(out)
        episodes = self.episodes()
        out |= {f"return_{how}": getattr(episodes["return"], how)() for how in ("mean", "std", "min", "max")}
        out["length_mean"] = float(episodes["length"].mean())
        successes = [e.success for e in self._episodes if e.success is not None]
        if successes:
            out["success_rate"] = float(np.mean(successes))
        for name, sums in episodes.items():
            if name.startswith("reward/"):
                out |= {name: sums.mean(), f"{name}_min": sums.min(), f"{name}_max": sums.max()}
        return Figures({name: x if isinstance(x, int) else float(x) for name, x in out.items()})

    def episodes(self) -> dict[str, np.ndarray]:
        """One entry per finished episode: `return`, `length`, `terminated`, the sums of its components as
        `reward/NAME`, and `success` where every episode says whether it succeeded."""
        reward = self._skeleton["reward"] if self._skeleton else "reward"
        out = {
            "return": np.array([total_of(e.columns, paths_of(reward)).sum() for e in self._episodes], np.float64),
            "length": np.array([e.length for e in self._episodes], np.int64),
            "terminated": np.array([e.terminated for e in self._episodes], bool),
        }
        for name, path in reward.items() if isinstance(reward, dict) else ():
            out[f"reward/{name}"] = np.array([e.columns[path].sum() for e in self._episodes])
        if self._episodes and all(e.success is not None for e in self._episodes):
            out["success"] = np.array([e.success for e in self._episodes], bool)
        return out

    def _refuse_open(self, method: str) -> None:
        if self._open is not None:
            raise TrajectoryError(f"{method}: episode {self.num_episodes} is still open; call finish_episode() first")

    def _where(self, step: int | None) -> str:
        episode = f"episode {self.num_episodes}"
        return f"the end of {episode}" if step is None else f"{episode}, step {step}"

    def _transpose(self, name: str, x: PyTree) -> PyTree:
        """A list with one entry per step as a tree of lists; anything else as it is."""
        if not isinstance(x, list) or not x:
            return x
        if not isinstance(x[0], (Mapping, tuple)):
            arrays = [self._array(name, item, 0, t) for t, item in enumerate(x)]
            for t, array in enumerate(arrays):
                if array.shape != arrays[0].shape:
                    self._differ({name: array.shape}, {name: arrays[0].shape}, name, t)
            return arrays
        rows: list[dict[str, PyTree]] = [{} for _ in x]
        skeletons = [flatten(item, name, row) for item, row in zip(x, rows)]
        for t, skeleton in enumerate(skeletons):
            if skeleton != skeletons[0]:
                self._differ(dict.fromkeys(rows[t]), dict.fromkeys(rows[0]), name, t)
        return map_tree(lambda _, path: self._transpose(path, [row[path] for row in rows]), skeletons[0])

    def _read(self, step: PyTree, lead: int, start: int) -> tuple[dict[str, PyTree], dict[str, np.ndarray]]:
        """A step (`lead` = 0), or an episode of them (1), as path -> array; raises where it does not fit."""
        leaves: dict[str, PyTree] = {}
        skeleton = {name: flatten(x, name, leaves) for name, x in step.items()}
        if self._skeleton is None:
            check_components(skeleton["reward"], skeleton["value"])
        arrays = {path: self._array(path, x, lead, start) for path, x in leaves.items()}
        if lead:
            lengths = {path: len(x) for path, x in arrays.items()}
            path, length = next(((p, n) for p, n in lengths.items() if p.startswith("reward")), ("reward", 0))
            other = next((p for p, n in lengths.items() if n != length), None)
            if other is not None:
                raise TrajectoryError(f"{other}: {lengths[other]} steps, but {path} has {length}")
            if not length:
                raise TrajectoryError(f"add_episode: episode {self.num_episodes} has no steps")
        shapes = {path: x.shape[lead:] for path, x in arrays.items()}
        if self._skeleton is not None and (skeleton != self._skeleton or shapes != self._shapes):
            field = next((f for f in skeleton if skeleton[f] != self._skeleton[f]), "")
            self._differ(shapes, self._shapes, field, start)
        return skeleton, arrays

    def _array(self, path: str, x: PyTree, lead: int, start: int | None) -> np.ndarray:
        field = path.partition("[")[0]
        try:
            array = np.array(x)  # a copy: environments write the next observation into the same array
        except (TypeError, ValueError, RuntimeError) as error:
            raise TrajectoryError(f"{path}: not an array at {self._where(start)}: {error}") from None
        if array.size and array.dtype.kind not in "biuf":
            raise TrajectoryError(f"{path}: {array.dtype} at {self._where(start)}, but only numbers can be stored")
        if array.ndim < lead:
            raise TrajectoryError(f"{path}: has no axis of steps; give one entry per step")
        if field in SCALAR and array.ndim != lead:
            shape = array.shape[lead:]
            raise TrajectoryError(
                f"{path}: shape {shape} at {self._where(start)}, but one number is expected, shape ()"
            )
        array = array.astype(DTYPES.get(field, array.dtype), copy=False)
        if field in FINITE and not np.isfinite(array).all():
            bad = np.argwhere(~np.isfinite(array))[0]
            at = self._where(int(bad[0]) if lead else start)
            raise TrajectoryError(f"{path}: {array[tuple(bad)]} at {at}, but it must be finite")
        return array

    def _differ(self, shapes: Mapping[str, object], before: Mapping[str, object], field: str, step: int) -> None:
        """Raise an error that names the first array that is missing, new, or of another shape."""
        at = self._where(step)
        for path in before:
            if path not in shapes:
                advice = "; give 0 where a component has no part" if path.startswith(SCALAR) else ""
                raise TrajectoryError(f"{path}: missing at {at}, but the steps before have it{advice}")
        for path, shape in shapes.items():
            if path not in before:
                raise TrajectoryError(f"{path}: given at {at}, but the steps before do not have it")
            if shape != before[path]:
                raise TrajectoryError(f"{path}: shape {shape} at {at}, but {before[path]} at the steps before")
        raise TrajectoryError(f"{field}: nested in another way at {at} than at the steps before")

    def _final(self, skeleton: dict[str, PyTree], final_value: PyTree, terminated: bool) -> dict[str, float]:
        """V after the last step, for each path of a value."""
        value, leaves = skeleton["value"], {}
        if terminated:
            return dict.fromkeys(paths_of(value), 0.0)
        form = flatten(final_value, "final_value", leaves)
        if not isinstance(value, dict):
            if not isinstance(form, str):
                raise TrajectoryError("final_value: must be a number, as the values of the steps are")
            return {value: float(self._array(form, final_value, 0, None))}
        if isinstance(form, str):
            if float(self._array(form, final_value, 0, None)) != 0.0:
                names = ", ".join(map(str, value))
                raise TrajectoryError(f"final_value: a number, but values are by component: {names}")
            return dict.fromkeys(value.values(), 0.0)
        require_components("final_value", form, "value", value)
        return {value[name]: float(self._array(path, leaves[path], 0, None)) for name, path in form.items()}

    def _keep(self, skeleton: dict[str, PyTree], arrays: dict[str, np.ndarray], lead: int) -> None:
        """Something was added: what it looks like holds for all, and results are out of date."""
        if self._skeleton is None:
            self._skeleton, self._shapes = skeleton, {path: x.shape[lead:] for path, x in arrays.items()}
        self._outdated |= self._rows is not None
        self._rows = None

    def _merge(self) -> dict[str, np.ndarray]:
        """All episodes as one array per path; the episodes keep views of it, so that there is one copy."""
        columns = {path: np.concatenate([e.columns[path] for e in self._episodes]) for path in self._shapes}
        stops = np.cumsum([e.length for e in self._episodes])
        self._episodes = [
            replace(e, columns={path: x[stop - e.length : stop] for path, x in columns.items()})
            for e, stop in zip(self._episodes, stops)
        ]
        return columns


def _gae(episode: _Episode, rewards: list[str], path: str, gamma: float, gae_lambda: float) -> np.ndarray:
    """A_t = delta_t + gamma lambda A_{t+1} over one episode [T], of the rewards and the value with these paths."""
    value, final = episode.columns[path], episode.final[path]
    delta = total_of(episode.columns, rewards) + gamma * np.append(value[1:], final) - value
    decay = gamma * gae_lambda
    return np.array(list(accumulate(delta[::-1].tolist(), lambda later, d: d + decay * later)))[::-1]


def total_of(columns: dict[str, np.ndarray], paths: list[str]) -> np.ndarray:
    return np.sum([columns[path] for path in paths], axis=0)
