"""Curricula: values by env steps and by success, exact in the program, under resume and for every seed."""

import json
import re
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from gymnasium import spaces

import kit
import regimen
from regimen import trees
from regimen.cli.main import main
from regimen.config import layers
from regimen.config.curriculum import LevelRule, Levels, Ramp, Stairs, parse
from regimen.engines import curriculum
from regimen.engines.base import Limits
from regimen.engines.curriculum import Curriculum
from regimen.engines.native import NativeEngine
from regimen.envs import registry
from regimen.envs.protocol import NativeEnv, native_env
from regimen.errors import ConfigError, StorageError
from regimen.files.run_dir import read_episodes, read_metrics, write_config
from regimen.runs.learner import initial_from
from regimen.types import Clock, EpisodeRows, TimeStep
from support import BROKEN, TINY, UPDATE, assert_same_run, command_line, final_state, reseal, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

COURSE = {
    "dial": "1, 2, 4 up 0.75 down 0.5 window 12",
    "chance": "1 @ 0, 0 @ 300 steps, 0.6 @ 500 steps",
    "drift": "-1 .. 3 over 400 steps",
}
RULE = LevelRule(3, 0.75, 0.5, 12)
UPDATES = 40


@native_env
class Dial(NativeEnv):
    """Succeeds with probability `chance` whatever is done, and tells the `dial` of its first and of its last step."""

    max_episode_steps: int = 3
    dial: float = 7.0
    chance: float = 0.5
    drift: float = 0.0

    metric_reductions = {"success": "last", "born": "last", "seen": "last", "drifted": "last"}  # noqa: RUF012
    curricula = {"staged": {**COURSE, "drift": "0 @ 0"}}  # noqa: RUF012

    @property
    def observation_space(self):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    @property
    def action_space(self):
        return spaces.Discrete(2)

    def reset(self, key):
        return (jax.random.uniform(key), jnp.float32(self.dial)), jnp.zeros(1)

    def step(self, key, state, action):
        luck, born = state
        success = (luck < self.chance).astype(jnp.float32)
        seen, drifted = jnp.float32(self.dial), jnp.float32(self.drift)
        metrics = {"success": success, "born": born, "seen": seen, "drifted": drifted}
        return state, TimeStep(obs=jnp.zeros(1), reward=success, terminated=jnp.bool_(False), metrics=metrics)


DIAL = f"{__file__}:Dial"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 @ 0, 8 @ 20k steps, 10 @ 50k steps", Stairs((5.0, 8.0, 10.0), (0, 20_000, 50_000))),
        (" -.5@0,1e-3 @ 1.5M , 2. @ 2_000_000 step", Stairs((-0.5, 1e-3, 2.0), (0, 1_500_000, 2_000_000))),
        ("3 .. 9.8 over 100k steps", Ramp(3.0, 9.8, 100_000)),
        ("3 .. .5 over 1e3", Ramp(3.0, 0.5, 1_000)),
        ("30, 40, 50 up 0.6 down 0.3 window 100", Levels((30.0, 40.0, 50.0), {"up": 0.6, "down": 0.3, "window": 100})),
        ("30,40 window 1e2 up .6", Levels((30.0, 40.0), {"window": 100, "up": 0.6})),
    ],
)
def test_texts(text, expected):
    assert parse(text, "x") == expected


BAD = {
    "5": r"'5' is not a schedule; write '5 @ 0, 8 @ 20k steps' .* '3 \.\. 9\.8 over 100k steps' .* '30, 40, 50 up",
    "5 @ 0,": "'5 @ 0,' is not a schedule; write",
    "5 @ 0, 8 @ 20 episodes": "is not a schedule; write",
    "1, 2 sideways 3": "is not a schedule; write",
    "3...5 over 10": "is not a schedule; write",  # .5 or 5?
    "5 @ 0, 8 @ 20k, 10 @ 2k": "steps must increase; 2,000 comes after 20,000",
    "5 @ 10, 8 @ 20k": "the first value must be @ 0, not @ 10",
    "5 @ 0, 8 @ 1.5": "1.5 is not a number of steps",
    "5 @ 0, 8 @ 1e99": "1e99 is not a number of steps",
    "1 .. 2 over 0 steps": "0 is not a number of steps; it must be whole and at least 1",
    "1e99 @ 0": "1e99 is too large",
    "1, 2 up 0.5 down 0.5": "up 0.5 must be greater than down 0.5",
    "1, 2 down 0.9": "up 0.8 must be greater than down 0.9",
    "1, 2 up 1.5": "up 1.5 is out of range",
    "1, 2 window 0": "window 0 is not a whole number of episodes",
    "1, 2 up 0.5 up 0.6": "'up 0.5 up 0.6' sets a term twice",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_texts_are_refused_where_settings_are_read(text):
    with pytest.raises(ConfigError, match=f"^curriculum.force: .*{BAD[text]}"):
        layers.build_config("cartpole", overrides={"curriculum": {"force": text}})


def test_fields_moved_by_success_share_one_level():
    _, rule = curriculum.read({"a": "1, 2, 3 up 0.6", "b": "9, 8, 7 window 20", "c": "1 @ 0"})
    assert rule == LevelRule(3, up=0.6, down=None, window=20)
    with pytest.raises(ConfigError, match=r"curriculum\.b: 2 levels, but 3 for a; .* share one level"):
        curriculum.read({"a": "1, 2, 3", "b": "1, 2"})
    with pytest.raises(ConfigError, match=r"curriculum\.b: up 0\.7, but up 0\.6 for another field"):
        curriculum.read({"a": "1, 2 up 0.6", "b": "1, 2 up 0.7"})
    with pytest.raises(ConfigError, match=r"curriculum\.level: .*train/curriculum/level"):
        curriculum.read({"level": "1, 2"})


def test_layers_merge_by_field(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("curriculum:\n  force: 5 @ 0, 8 @ 20k steps\n  mass-pole: 1 .. 2 over 1e3\n")

    def merged(**overrides):
        return layers.build_config("cartpole", config_file=file, overrides=overrides).curriculum

    assert merged() == {"force": "5 @ 0, 8 @ 20k steps", "mass_pole": "1 .. 2 over 1e3"}
    assert merged(**{"curriculum.force": "1 @ 0"})["force"] == "1 @ 0"
    assert merged(curriculum__force=None) == {"mass_pole": "1 .. 2 over 1e3"}
    assert merged(curriculum="staged") == {"preset": "staged"}, "a named one replaces what is below it"
    assert merged(curriculum={"preset": "staged", "dt": "1 @ 0"}) == {"preset": "staged", "dt": "1 @ 0"}
    assert merged(curriculum=None) == merged(curriculum="none") == {}
    with pytest.raises(ConfigError, match="curriculum: 3 is not a mapping"):
        merged(curriculum=3)
    file.write_text("curriculum: {force: 5 @ 0, 8 @ 20k steps}\n")  # YAML takes the second part for a key
    with pytest.raises(ConfigError, match="not the name of a field; write the schedule in quotes"):
        merged()


def test_config_yaml_round_trip(tmp_path):
    config = layers.build_config("cartpole", overrides={"curriculum": COURSE})
    data = yaml.safe_load(yaml.safe_dump(layers.to_dict(config)))
    assert layers.from_dict(data) == config and data["curriculum"] == COURSE
    del data["curriculum"]  # as runs before there were curricula wrote it: complete all the same
    assert layers.from_dict(data) == config.replace(curriculum={})
    assert layers.is_complete(data, "ppo")


REFUSED = {  # environment and flags, what the line says
    "unknown field": (["cartpole", "--curriculum.forse", "5 @ 0"], "curriculum.forse: .*did you mean 'force'"),
    "not a float": (
        ["cartpole", "--curriculum.max-episode-steps", "9 @ 0"],
        "not a float .* fields: gravity, mass_cart,",
    ),
    "no float": (["probe/match", "--curriculum.max_episode_steps", "9 @ 0"], "of probe/match .*it has no float field"),
    "host": (["gym:CartPole-v1", "--curriculum.gravity", "5 @ 0"], "gym:CartPole-v1 .* need a native environment"),
    "host preset": (["gym:CartPole-v1", "--curriculum", "staged"], "gym:CartPole-v1 .* need a native environment"),
    "no success": (
        [f"{BROKEN}:Luck", "--curriculum.gain", "1, 2"],
        "neither a metric 'success' nor a return threshold",
    ),
    "text": (["cartpole", "--curriculum.force", "strong"], "'strong' is not a schedule; write '5 @ 0, 8 @ 20k steps'"),
    "no presets": (["cartpole", "--curriculum", "staged"], "'staged' is not a curriculum of cartpole, which declares"),
    "unknown preset": ([DIAL, "--curriculum", "stagde"], "'stagde' is not a curriculum of .*did you mean 'staged'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case, capsys, tmp_path):
    argv, message = REFUSED[case]
    assert main(["train", *argv, "--out", str(tmp_path / "run"), "--quiet"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(f"^regimen: error: .*{message}", error), error
    assert not (tmp_path / "run").exists()


# --- the level -------------------------------------------------------------------------------------------------------


def levels_of(successes: list[list[bool]], rule: LevelRule) -> list[int]:
    """The level of each update, from the successes of the episodes that ended in each."""
    level, seen, path = 1, [], []
    for ended in successes:
        path.append(level)
        seen = seen + list(ended)
        if len(seen) < rule.window:
            continue
        rate = Fraction(int(sum(seen[-rule.window :])), rule.window)
        way = (rate >= Fraction(str(rule.up))) - (rule.down is not None and rate < Fraction(str(rule.down)))
        if 1 <= level + way <= rule.levels and way:
            level, seen = level + way, []
    return path


def rows_of(successes: list[bool], capacity: int, threshold: float | None = None) -> EpisodeRows:
    """Rows behind `count` are garbage, here successes."""
    value = np.ones(capacity, np.float32)
    value[: len(successes)] = successes
    other = jnp.zeros(capacity, jnp.int32)
    reward = jnp.stack([jnp.asarray(value), jnp.full(capacity, 2.0)], 1)  # two components, 3 for a success
    metrics = {"success": jnp.asarray(value)} if threshold is None else {}
    return EpisodeRows(jnp.int32(len(successes)), other, other, reward, other, other > 0, metrics)


@pytest.mark.parametrize("threshold", [None, 3.0])  # by the metric, by a return at the threshold
@pytest.mark.parametrize("rule", [(3, 0.6, 0.3, 4), (4, 0.7, 0.69, 25), (2, 1.0, 1e-3, 1), (5, 0.5, None, 7)])
def test_the_level_moves_as_the_rule_says(rule, threshold):
    rule = LevelRule(*rule)
    rng = np.random.default_rng(0)
    course = Curriculum({}, rule, threshold)
    after = jax.jit(course.after)
    chances = np.repeat([0.9, 0.1, 0.95, 0.4], 30)
    successes = [list(rng.random(rng.integers(0, 11)) < p) for p in chances]  # fewer and more than a window
    state, path = course.start(), []
    for ended in successes:
        path.append(int(state["level"]) + 1)
        state = after(state, rows_of(ended, 10, threshold))
    assert path == levels_of(successes, rule)
    assert max(path) == rule.levels and (rule.down is None or path.count(1) > 30), "or little is shown"
    assert rule.down is not None or path == sorted(path)


def test_rates_are_compared_exactly():
    assert LevelRule(2, 0.07, 0.06, 100).enough() == 7 and 0.07 * 100 > 7
    assert LevelRule(2, 0.29, 0.28, 100).enough() == 29 and LevelRule(2, 0.9, 0.55, 20).too_few() == 11
    assert LevelRule(2, 0.5).too_few() == 0


def clock_at(steps: int) -> Clock:
    zero = jnp.int32(0)
    return Clock(zero, jnp.int32(steps >> 30), jnp.int32(steps & (2**30 - 1)), zero, zero, zero)


@pytest.mark.parametrize(("text", "points"), [
    ("5 @ 0, 8 @ 20k steps, 10 @ 50k", {0: 5, 19_999: 5, 20_000: 8, 49_999: 8, 50_000: 10, 2**40: 10}),
    (f"1 @ 0, 2 @ {2**31 + 7}, 3 @ {2**33}", {2**30 + 8: 1, 2**31 + 6: 1, 2**31 + 7: 2, 2**33 - 1: 2, 2**33: 3}),
    ("3 .. 9.8 over 100k steps", {0: 3, 25_000: 4.7, 100_000: 9.8, 2**40: 9.8}),
    (f"2 .. 1 over {2**40}", {0: 2, 2**39: 1.5, 2**40: 1}),
])  # fmt: skip
def test_values_by_steps(text, points):
    course = Curriculum({"force": parse(text, "force")})
    at = jax.jit(lambda clock: course.apply(registry.resolve("cartpole").native, clock, {})[0].force)
    values = {steps: at(clock_at(steps)) for steps in points}
    assert values == pytest.approx(points)
    assert all(values[s] == np.float32(v) for s, v in points.items() if s in (0, 2**40)), "the ends exactly"


def test_parameters_of_gymnax_environments():
    pytest.importorskip("gymnax")
    handle = registry.resolve("gymnax:CartPole-v1")
    course = curriculum.make({"gravity": "3 @ 0, 4 @ 10"}, handle)
    assert course is not None and course.rule is None
    env, metrics = course.apply(handle.native, clock_at(10), {})
    assert env.params.gravity == metrics["curriculum/gravity"] == 4.0 and env.params.tau == handle.native.params.tau
    with pytest.raises(ConfigError, match="max_episode_steps: not a float field"):
        curriculum.make({"max_episode_steps": "3 @ 0"}, handle)


# --- runs ------------------------------------------------------------------------------------------------------------

COMMON = {"curriculum": COURSE, "checkpoint.every": "8", "checkpoint.keep": 10, "eval.every": "10"}
COMMON["algo.horizon"] = "1e4 steps"  # part of the program, which all these runs share
KINDS = {"steps": COMMON, "episodes": COMMON | {"rollout.steps": None, "rollout.episodes": 10, "rollout.num_envs": 2}}


def budget(kind: str, updates: int) -> dict:
    return {"total_steps": updates * (UPDATE if kind == "steps" else 30)}  # 10 episodes of 3 steps


@pytest.fixture(scope="module", params=KINDS)
def whole(request, tmp_path_factory):
    """(kind, directory of 40 updates in one go)."""
    kind, out = request.param, tmp_path_factory.mktemp("whole") / request.param
    tiny(out, env=DIAL, **{**KINDS[kind], **budget(kind, UPDATES)})
    return kind, out


def successes_of(run, updates: int) -> list[list[bool]]:
    episodes = read_episodes(run)
    return [list(episodes["success"][episodes["update"] == u + 1]) for u in range(updates)]


def logged(run, name: str) -> list[float]:
    return [row[f"train/curriculum/{name}"] for row in read_metrics(run)]


def test_values_are_those_of_the_schedule(whole):
    _, run = whole
    rows = read_metrics(run)
    assert len(rows) == UPDATES
    before = [0, *(row["env_steps"] for row in rows[:-1])]  # values are those at the start of an update
    assert logged(run, "chance") == [1.0 if n < 300 else 0.0 if n < 500 else pytest.approx(0.6) for n in before]
    assert logged(run, "drift") == pytest.approx([min(-1 + 4 * n / 400, 3) for n in before], abs=1e-5)
    levels = logged(run, "level")
    assert levels == levels_of(successes_of(run, UPDATES), RULE)
    assert logged(run, "dial") == [(1, 2, 4)[int(level) - 1] for level in levels]
    assert levels[9] == 3 and 1 in levels[10:18], "up while every episode succeeds, down while none does"


def test_values_reach_the_running_environments(whole):
    kind, run = whole
    episodes = read_episodes(run)
    update = episodes["update"] - 1
    for metric, name in (("seen", "dial"), ("drifted", "drift")):
        np.testing.assert_allclose(episodes[metric], np.array(logged(run, name))[update], atol=1e-6)
    across = episodes["born"] != episodes["seen"]
    assert across.any() == (kind == "steps"), "episodes that outlast an update meet the new value"
    assert episodes["born"][0] == 1.0, "also before the first update"


def test_evaluation_plays_the_environment_as_configured(whole):
    _, run = whole
    points = [row for row in read_metrics(run) if "eval/seen" in row]
    assert len(points) == 4 and {row["eval/seen"] for row in points} == {7.0} == {row["eval/born"] for row in points}
    assert regimen.evaluate(run, episodes=3).to_dict()["metrics"]["seen"] == 7.0


def test_moves_are_told(whole):
    _, run = whole
    lines = (run / "log.txt").read_text().splitlines()
    assert "chance 1, then 0 from step 300, then 0.6 from step 500; drift from -1 to 3 over 400 steps; " in lines[1]
    assert "dial 1, 2, 4 by success: up at 75% of the last 12 episodes, down below 50%; evaluation plays" in lines[1]
    assert moves_in(run) == expected_moves(run)
    assert not any("drift" in line for line in lines[2:])


def moves_in(run) -> list[str]:
    return re.findall(r"curriculum at (.*)", (run / "log.txt").read_text())


def expected_moves(run) -> list[str]:
    steps, chance, level = [row["env_steps"] for row in read_metrics(run)], logged(run, "chance"), logged(run, "level")
    lines = []
    for j in range(1, len(steps)):
        if chance[j] != chance[j - 1]:
            lines.append(f"step {steps[j - 1]:,}: chance {chance[j]:g}")
        if level[j] != level[j - 1]:
            n = int(level[j])
            way = "up" if n > level[j - 1] else "down"
            lines.append(f"step {steps[j - 1]:,}: {way} to level {n} of 3, dial {(1, 2, 4)[n - 1]}")
    return lines


@pytest.mark.parametrize("at", [1, 2, 23])  # within a window, where the level has just moved, later
def test_a_resumed_run_is_the_run(whole, tmp_path, at):
    """The same state bit for bit, the same rows, and every move told once."""
    (kind, run), half = whole, tmp_path / "half"
    tiny(half, env=DIAL, **{**KINDS[kind], **budget(kind, at)})
    assert at > 1 or 0 < final_state(half)[0]["carry/curriculum/seen"] < RULE.window
    regimen.resume(half, **budget(kind, UPDATES))
    assert_same_run(run, half)
    assert {"carry/curriculum/level", "carry/curriculum/recent"} <= set(final_state(half)[0])
    assert moves_in(half) == expected_moves(half) == moves_in(run)


def test_the_machine_decides_nothing(whole, tmp_path, monkeypatch):
    kind, run = whole
    limits = NativeEngine.device_limits

    def slow(self, asked):
        self.speed = 3
        return limits(self, asked)

    monkeypatch.setattr(NativeEngine, "device_limits", slow)
    tiny(tmp_path / "slow", env=DIAL, **{**KINDS[kind], **budget(kind, UPDATES)})
    assert_same_run(run, tmp_path / "slow")
    assert moves_in(tmp_path / "slow") == moves_in(run)


def test_a_row_of_several_updates_has_the_value_of_the_last(tmp_path):
    tiny(tmp_path / "run", updates=12, env=DIAL, **COMMON | {"log.every": "4"})
    rows = {row["env_steps"]: row["train/curriculum/drift"] for row in read_metrics(tmp_path / "run")}
    assert list(rows) == [128, 256, 320, 384]  # 320: an evaluation
    assert list(rows.values()) == pytest.approx([-1 + 4 * (n - UPDATE) / 400 for n in rows])


@pytest.mark.long
def test_every_seed_moves_on_its_own(tmp_path):
    runs = [one.run_dir for one in tiny(tmp_path / "group", updates=UPDATES, env=DIAL, seeds=3, **COMMON).runs]
    paths = [logged(run, "level") for run in runs]
    for run, path in zip(runs, paths):
        assert path == levels_of(successes_of(run, UPDATES), RULE)
        episodes = read_episodes(run)
        np.testing.assert_array_equal(episodes["seen"], np.array(logged(run, "dial"))[episodes["update"] - 1])
        assert moves_in(run) == expected_moves(run)
    assert paths[0] != paths[1] and paths[1] != paths[2]
    alone = tiny(tmp_path / "alone", updates=UPDATES, env=DIAL, seed=1, **COMMON)
    assert logged(alone.run_dir, "level") == paths[1], "as it would alone: luck does not depend on the policy"
    regimen.resume(runs[1], total_steps=(UPDATES + 10) * UPDATE)
    assert logged(runs[1], "level") == levels_of(successes_of(runs[1], UPDATES + 10), RULE)


engine_of = partial(kit.engine_of, DIAL)


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_nothing_is_compiled_again_when_values_change(seeds):
    engine, compiled = engine_of(seeds=seeds, **COMMON), []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compiled.append(event)

    advance = partial(engine.advance, [Limits(10)] * len(seeds))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        values = [advance()]
        first = len(compiled)
        assert first >= 1
        engine.speed = 1e9
        values += [advance() for _ in range(3)]
        assert len(compiled) == first
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    seen = np.concatenate([v[0].metrics["curriculum/dial"] for v in values])
    assert len(set(seen)) == 3, "the values did change"


def test_without_a_curriculum_nothing_is_carried_or_logged(tmp_path):
    engine, plain = engine_of(**COMMON), engine_of()
    with_it, without = (trees.flatten(e.carry) for e in (engine, plain))
    own = {f"curriculum/{name}" for name in ("level", "seen", "recent")}
    assert set(with_it) == {f"envs/{name}" for name in without} | own and plain.curriculum is None
    run = tmp_path / "run"
    tiny(run, updates=2)
    assert not [name for row in read_metrics(run) for name in row if "curriculum" in name]
    path = run / "checkpoints" / str(2 * UPDATE) / "meta.json"
    meta, config = json.loads(path.read_text()), yaml.safe_load((run / "config.yaml").read_text())
    assert config.pop("curriculum") == {} and meta["identity"].pop("curriculum") == "none" and "lesson" not in meta
    reseal(path, identity=meta["identity"])  # as they were before there were curricula
    write_config(run, config)
    assert regimen.resume(run, total_steps=4 * UPDATE).summary["updates"] == 4


def test_a_checkpoint_belongs_to_its_curriculum(tmp_path):
    run = tmp_path / "run"
    tiny(run, updates=2, env=DIAL, **COMMON)
    config = yaml.safe_load((run / "config.yaml").read_text())
    for course, words in (({**COURSE, "drift": "0 @ 0"}, ".*drift 0 @ 0"), ({}, "none")):
        write_config(run, config | {"curriculum": course})
        with pytest.raises(StorageError, match=f"its curriculum is .* over 400 steps, this run's is {words}"):
            regimen.resume(run, total_steps=4 * UPDATE)
    other = layers.build_config(DIAL, overrides={**TINY, "curriculum": {"dial": "5 @ 0"}})
    adopt = initial_from(run, other, registry.resolve(DIAL), print)
    assert adopt(engine_of().state).models.keys() == {"policy"}, "a policy may go on to another curriculum"


# --- as users write it -----------------------------------------------------------------------------------------------


def test_cartpole_from_the_command_line(tmp_path, capsys):
    """Flags, a resume, and the file that a run leaves: the same run three times."""
    run, again = tmp_path / "run", tmp_path / "again"
    flags = [*command_line(total_steps=4 * UPDATE), "--curriculum.force", f"5 @ 0, 8 @ {2 * UPDATE} steps"]
    flags += ["--algo.horizon", "1e4 steps", "--curriculum.mass-pole=0.1, 0.2 window 3"]  # nobody reaches the threshold
    assert main(["train", "cartpole", *flags, "--out", str(run)]) == 0
    out = capsys.readouterr().out
    assert "curriculum: force 5, then 8 from step 64; mass_pole 0.1, 0.2 by success: up at 80% of the last 3" in out
    assert out.count("curriculum at step 64: force 8") == 1
    assert logged(run, "force") == [5, 5, 8, 8] and logged(run, "level") == [1] * 4
    assert main(["resume", str(run), "--total-steps", str(6 * UPDATE), "--quiet"]) == 0
    assert logged(run, "force") == [5, 5, 8, 8, 8, 8]
    assert main(["train", "--config", str(run / "config.yaml"), "--out", str(again), "--quiet", "--no-track"]) == 0
    assert_same_run(run, again)


def test_a_probe_from_python_and_yaml(tmp_path):
    text = "0 @ 0, 0.9 @ 64 steps"
    tiny(tmp_path / "python", env="probe/action_box", curriculum={"target": text})
    (tmp_path / "c.yaml").write_text(f"env: probe/action_box\ncurriculum: {{target: '{text}'}}\n")
    flags = [*command_line(total_steps=4 * UPDATE), "--config", str(tmp_path / "c.yaml"), "--quiet"]
    assert main(["train", *flags, "--out", str(tmp_path / "yaml")]) == 0
    assert logged(tmp_path / "yaml", "target") == pytest.approx([0, 0, 0.9, 0.9])
    assert_same_run(tmp_path / "python", tmp_path / "yaml")


def test_a_curriculum_that_the_environment_declares(tmp_path, capsys):
    run = tmp_path / "run"
    flags = [DIAL, *command_line(total_steps=6 * UPDATE, **{"algo.horizon": "1e4 steps"})]
    flags += ["--curriculum", "staged", "--curriculum.drift", COURSE["drift"]]
    assert main(["train", *flags, "--out", str(run), "--quiet"]) == 0
    assert yaml.safe_load((run / "config.yaml").read_text())["curriculum"] == COURSE, "in full"
    assert logged(run, "level") == [1, 1, 2, 3, 3, 3], "8, 12, 12, 8, ... successes an update, a window of 12"
    assert main(["envs", DIAL]) == 0
    assert re.search(r"--curriculum staged +dial: 1, 2, 4 up 0\.75 .*; drift: 0 @ 0\n", capsys.readouterr().out)


def test_help_says_what_can_be_written(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "cartpole", "--curriculum.force", "5 @ 0", "--help-all"]) == 0
    assert "--curriculum.FIELD SCHEDULE" in capsys.readouterr().out
