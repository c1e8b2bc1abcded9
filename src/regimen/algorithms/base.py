"""The base of every algorithm: its traits, its hyper-parameters as data of a pytree, and what it binds to an
environment's spaces."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import numpy as np

from regimen.config import calls, lookup
from regimen.config.fields import Count
from regimen.config.names import Absent, Answering
from regimen.config.schema import ALGORITHMS, NetworkConfig
from regimen.config.validation import field_types
from regimen.errors import ConfigError
from regimen.inputs import Inputs, Norm
from regimen.types import Array, Batch, PyTree, Scalar, Spec, State


class Horizon(NamedTuple):
    """The length of the schedules, in a unit of the clock."""

    length: Scalar
    unit: str

    @classmethod
    def parse(cls, text: str | None) -> Horizon | None:
        count = Count.parse(text, "algo.horizon")
        return None if count is None else cls(float(count.n), count.unit)


class Binding:
    """What an algorithm makes once for an environment: the distribution of its actions, its networks, its tables.
    Compared by identity: part of the compiled program."""

    notes: Sequence[str] = ()
    """Lines for the head of a run's log."""

    def __init__(self, spec: Spec, dist: Any = None):
        self.spec = spec
        self.dist = dist
        self.inputs = Inputs(spec.observation_space)

    def replay_bytes(self) -> int:
        """Bytes of one learner's replay, without making it; 0 where there is none."""
        return 0

    def replay_rows(self) -> int:
        """The most rows that one learner's replay keeps; 0 where there is none."""
        return 0

    def activation_bytes(self) -> int:
        """About what the gradient of one row keeps between the layers of encoders; 0 where there are none."""
        return 0


class Algorithm(Answering):
    """Hyper-parameters and, once bound to a `Spec`, networks. Methods are pure. The rest of the system asks the class
    for its traits, which are the attributes below."""

    config_class: type
    """Dataclass of the hyper-parameters."""
    default_network = NetworkConfig()
    """Networks where the run does not choose them."""
    online: bool = True
    """Learns from an environment: has a method `update`. Else a dataset is collected first."""
    offline: bool = False
    """Learns from a dataset: has a method `fit`."""
    asynchronous: bool = False
    """Learns also from batches of an older policy, so that workers need not wait for each other."""
    needs_env: bool = False
    """Needs the native environment itself, not only its spaces, also to act."""
    by_env: tuple[str, ...] | None = None
    """Entries of `State.aux` with a row for every environment; the rest is common to all devices. None: it learns on
    one device only."""
    stages: tuple[str, ...] = ()
    """Names of what its metric `stage` counts."""
    varies_together: bool = False
    """Learners that differ in float hyper-parameters are, by test, the same in one program as alone."""
    shaping: tuple[str, ...] = ()
    """Float hyper-parameters whose being 0 or not is part of the program."""
    counting: tuple[str, ...] = ()
    """Float hyper-parameters that say how often a loop turns, which learners of one program do together."""
    progress: tuple[str, ...] = ()
    """Metrics of `update` that the console shows beside loss and entropy."""
    load = Absent()
    labels: ClassVar[dict[str, str]] = {}
    """Metrics of `update` that have a chart of their own on the page, and what it is called."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.varies_together = bool(vars(cls).get("varies_together"))  # shown by a test of each class: not inherited

    def __init__(self, config: Any = None, network: NetworkConfig | None = None, **overrides: object):
        if calls.is_call(config, overrides) or not isinstance(network, NetworkConfig | None):
            raise ConfigError(calls.answer_call(type(self).__name__, config, network, overrides))
        refuse_unknown(type(self), overrides)
        self.config = dataclasses.replace(config or self.config_class(), **overrides)
        self.network = network or self.default_network
        self.horizon = Horizon.parse(getattr(self.config, "horizon", None))
        self.binding: Any = None

    def bind(self, spec: Spec) -> Self:
        """This algorithm for one environment's spaces."""
        return self.with_binding(self.build(spec))

    def with_binding(self, binding: Binding) -> Self:
        """This algorithm with networks that were made before."""
        algo = type(self)(self.config, self.network)
        algo.binding = binding
        return algo

    @property
    def bound(self) -> Any:
        assert self.binding is not None, "call bind(spec) first"
        return self.binding

    def build(self, spec: Spec) -> Binding:
        """What is made once for an environment."""
        raise NotImplementedError

    def init(self, key: Array) -> State:
        """The state of a learner that has learned nothing."""
        raise NotImplementedError

    def actor_params(self, state: State) -> PyTree:
        """What acting needs and nothing more: it is what travels to workers and what a policy's file holds."""
        raise NotImplementedError

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        """Actions [..., *shape] as sampled, the carry behind them, and what is to be known of the choice later.
        `mask` is a `spaces.mask_row`."""
        raise NotImplementedError

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """The state after learning from one rollout, and metrics of it."""
        raise NotImplementedError

    def initial_carry(self, lead: tuple[int, ...]) -> PyTree:
        """What the policy carries between the steps of an episode, at its start."""
        return ()

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        """The randomness of a rollout's actions, drawn at once: `act` is deterministic given it."""
        return self.bound.dist.noise(key, shape)

    def to_env(self, action: PyTree) -> PyTree:
        """Actions as the environment takes them; numpy from numpy."""
        out = self.bound.dist.to_env(action)
        on_host = isinstance(jax.tree.leaves(action)[0], (np.ndarray, np.generic))
        return jax.tree.map(np.asarray, out) if on_host else out

    def to_space(self, action: PyTree) -> PyTree:
        """Actions as elements of the action space, where `to_env` says more."""
        return self.to_env(action)

    def features(self, obs: PyTree, norm: Norm | None) -> PyTree:
        """Observations as networks read them: vectors [..., D], or `Features` where parts have encoders."""
        return self.bound.inputs.normalize(self.bound.inputs.read(obs), norm)

    def first_norm(self) -> dict[str, PyTree]:
        """Normalisers before anything was observed."""
        norm = self.bound.inputs.zero_norm() if self.config.normalize_obs else None
        return {} if norm is None else {"obs": norm}

    def updated_norm(self, state: State, batch: Batch) -> dict[str, PyTree]:
        """The normalisers with the observations of a batch."""
        if "obs" not in state.norm:
            return state.norm
        return state.norm | {"obs": self.observed(state.norm["obs"], batch.obs, batch.valid)}

    def observed(self, norm: Norm, obs: PyTree, valid: Array) -> Norm:
        """A normaliser with further observations, of the rows where `valid`."""
        inputs = self.bound.inputs
        return inputs.merge(norm, inputs.statistics(obs, valid))

    @property
    def gamma(self) -> float:
        """Discount per step."""
        return self.config.gamma

    @property
    def max_lag(self) -> int | None:
        """The most updates between the policy that collected a batch and the one that learns from it; None: any."""
        return None

    @property
    def sync_every(self) -> int | None:
        """Training steps between the weights sent to asynchronous workers; None: they get them after every update."""
        return None

    def training_steps(self, state: State) -> int:
        """Training steps so far, which `sync_every` counts."""
        raise NotImplementedError


def refuse_unknown(cls: type[Algorithm], overrides: dict[str, object]) -> None:
    """Raise an error that answers arguments which are no hyper-parameters, those of other trainers with ours."""
    fields = {f.name for f in dataclasses.fields(cls.config_class)}
    name = next((name for name, entry in ALGORITHMS.items() if entry.config is cls.config_class), None)
    answers = []
    for key, value in overrides.items():
        if key not in fields:
            hint = lookup.suggest(f"algo.{key}", name, original=value) if name else ""
            hint = re.sub(r"algo\.(\w+): ", r"\1=", hint).replace("algo.", "")
            answers.append(f"'{key}'{hint}")
    if answers:
        raise ConfigError(f"{cls.__name__}: unknown argument {', '.join(answers)}")


A = TypeVar("A", bound=type[Algorithm])


def register(cls: A) -> A:
    """Make an algorithm a pytree whose float hyper-parameters, also of sections within, and whose length of the
    schedules are data: another value does not compile anew."""
    jax.tree_util.register_pytree_node(cls, _flatten, lambda static, leaves: _unflatten(cls, static, leaves))
    return cls


def floats(config: Any) -> dict[str, PyTree]:
    """Field -> value of the float fields, those of nested sections as a dict."""
    out = {}
    for name, hint in field_types(type(config)).items():
        value = getattr(config, name)
        if float in (hint, *typing.get_args(hint)) and value is not None:
            out[name] = value
        elif dataclasses.is_dataclass(value):
            out[name] = floats(value)
    return out


def with_floats(config: Any, values: dict[str, PyTree]) -> Any:
    """The configuration with other values of its float fields."""
    new = {k: with_floats(getattr(config, k), v) if isinstance(v, dict) else v for k, v in values.items()}
    return dataclasses.replace(config, **new)


def _flatten(algo: Algorithm):
    data = floats(algo.config)
    blank = with_floats(algo.config, jax.tree.map(lambda _: 0.0, data))
    if algo.horizon is not None:
        blank = dataclasses.replace(blank, horizon=None)
    length, unit = algo.horizon or (None, None)
    return (data, length), (blank, algo.network, algo.binding, unit)


def _unflatten(cls: type[Algorithm], static, children) -> Algorithm:
    config, network, binding, unit = static
    data, length = children
    algo = cls(with_floats(config, data), network)
    algo.horizon = None if unit is None else Horizon(length, unit)
    algo.binding = binding
    return algo
