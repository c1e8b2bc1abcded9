"""What the rest of the system asks of an algorithm's class, and what is known of it before it is imported."""

import dataclasses

import pytest

from regimen.algorithms.appo import APPO
from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import make_algorithm
from regimen.algorithms.impala import IMPALA
from regimen.algorithms.ppo import PPO
from regimen.config.schema import ALGORITHMS, NetworkConfig
from regimen.errors import ConfigError


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_what_is_known_before_the_class_is_imported_agrees_with_it(name):
    entry = ALGORITHMS[name]
    cls = entry.load()
    assert issubclass(cls, Algorithm) and cls.config_class is entry.config
    assert (entry.offline, entry.online) == (cls.offline, cls.online)
    assert not cls.offline or callable(cls.fit)
    assert not cls.online or cls.update is not Algorithm.update
    floats = {f.name for f in dataclasses.fields(entry.config)}
    assert {*cls.shaping, *cls.counting} <= floats


def test_one_program_for_several_settings_is_not_inherited():
    """It is shown by a test of each class; a subclass need not be a pytree of its settings."""

    class Other(PPO):
        pass

    assert PPO.varies_together and not Other.varies_together and Other.shaping == ("kl_coef",)


def test_limits_that_are_settings_come_from_the_settings():
    assert IMPALA(max_lag=7).max_lag == 7 and PPO().max_lag is None
    assert APPO().sync_every is None


def test_a_class_that_is_no_algorithm_is_named(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "none", dataclasses.replace(ALGORITHMS["ppo"], target=dict))
    with pytest.raises(ConfigError, match=r"algorithm 'none': <class 'dict'> is not a subclass of regimen\.algorithms"):
        make_algorithm("none", None, NetworkConfig())
