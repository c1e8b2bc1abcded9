"""The regimen: what is shared equally by environments and workers, and what it says of an update's size."""

from dataclasses import dataclass

import pytest

from regimen.config.common import CommonHyperparameters
from regimen.config.layers import build_config
from regimen.config.regimen import Regimen, resolve, share_rollout
from regimen.config.schema import ALGORITHMS
from regimen.errors import ConfigError

ANY = "any:environment"


def regimen_of(native=True, **overrides):
    return resolve(build_config(ANY, overrides=overrides), native)


def test_workers_share_the_environments():
    given = {"engine": "ray", "engine.workers": 3, "rollout.episodes": 12}
    assert [regimen_of(native, **given).num_envs for native in (True, False)] == [12, 6]
    share = regimen_of(**given).of_worker()
    assert (share.n, share.num_envs, share.workers, share.kind) == (4, 4, 1, "episodes")
    with pytest.raises(ConfigError, match="only with --engine ray"):
        regimen_of(**given | {"engine": "local"})


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"rollout.episodes": 10},
            "rollout.episodes: 10 .*engine.workers 4; nearest valid: workers 2 or 5, or .* 8 or 12",
        ),
        ({"rollout.steps": 24, "num_envs": 6}, "rollout.num_envs: 6 .*num_envs 4 or 8, or workers 3 or 6"),
    ],
)
def test_what_workers_cannot_share_is_refused(overrides, words):
    with pytest.raises(ConfigError, match=words):
        build_config(ANY, overrides={"engine": "ray", "engine.workers": 4} | overrides)


def test_the_file_of_a_run_names_the_environments_that_workers_share():
    config = build_config(ANY, overrides={"engine": "ray", "engine.workers": 2, "rollout.steps": 64})
    assert config.rollout.num_envs is None and share_rollout(config, native=False).rollout.num_envs == 8
    alone = config.replace(engine=build_config(ANY).engine)
    assert share_rollout(alone, native=False) is alone


def test_the_size_of_an_update():
    steps = Regimen("steps", 32, 4, native=True, agents=3)
    assert (steps.rollout_rows, steps.most_rows) == (8, 96)
    episodes = Regimen("episodes", 10, 5, native=False, max_episode_steps=200)
    assert (episodes.rollout_rows, episodes.most_rows) == (0, 2000)
    assert Regimen("episodes", 10, 5, native=False).most_rows == 10_000  # about


def test_common_hyperparameters_of_any_dataclass():
    """Fields and properties count; what an algorithm does not have is the default."""

    @dataclass(frozen=True)
    class Plain:
        buffer_size: int = 7
        horizon: str | None = None
        ent_schedule: str = "cosine"

        @property
        def update_ratio(self) -> float:
            return 0.5

    common = CommonHyperparameters.of(Plain())
    assert (common.buffer_size, common.update_ratio, common.horizon) == (7, 0.5, None)
    assert common.moving == {"ent_schedule": "cosine"}
    assert common.epochs is None and common.learning_starts == 0
    assert CommonHyperparameters.of(object()).horizon == ""  # no schedules, which is not a horizon that is not set yet
    empowerment = ALGORITHMS["empowerment"].config(training_steps_per_env_step=0.25)
    assert CommonHyperparameters.of(empowerment).update_ratio == 0.25
