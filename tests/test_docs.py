"""The documentation is true: commands parse, code runs, links lead somewhere, tables agree with the code."""

import dataclasses
import importlib
import inspect
import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml

import regimen
from regimen import errors
from regimen.cli import main as cli
from regimen.cli import study, sweep
from regimen.cli.shells import classes_of
from regimen.cli.train import read
from regimen.config import layers, presets
from regimen.config.algorithms.bc import BCConfig
from regimen.config.algorithms.cql import CQLConfig
from regimen.config.algorithms.sac import SACConfig
from regimen.config.domains import domains
from regimen.config.flags import field_docs, parse
from regimen.config.regimen import resolve
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.config.validation import coerce, field_types
from regimen.domains.airspace import files as scenario_files
from regimen.envs import registry
from regimen.networks import NETWORKS
from regimen.spaces import describe
from support import TINY

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
ARCHITECTURE = ROOT / "docs" / "architecture.md"
RUN_DIRECTORY = ROOT / "docs" / "run_directory.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> list[str]:
    """Shell lines of a page, continuation lines joined, comments and prompts removed."""
    text = "\n".join(blocks(page, "bash", "sh")).replace("\\\n", " ")
    lines = [re.sub(r"\s+#.*$", "", line).removeprefix("$ ").strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def table(page: Path, heading: str) -> list[list[str]]:
    """Rows of the first table below a heading, without its head."""
    text = FENCE.sub("", page.read_text()).partition(f"# {heading}\n")[2]
    rows = re.search(r"((?:^\|.*\n)+)", text, re.MULTILINE)
    assert rows is not None, f"{page.name}: no table below '{heading}'"
    lines = rows.group(1).splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def code_names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


SHELL = [(page, line) for page in PAGES for line in commands(page)]
REGIMEN = [(page.name, line) for page, line in SHELL if line.startswith("regimen ")]


@pytest.fixture
def placeholders(tmp_path, monkeypatch):
    """A directory with what the pages' commands refer to: RUN, DATASET, my.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "RUN").mkdir()
    config = layers.to_dict(layers.build_config("cartpole"))
    (tmp_path / "RUN" / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "DATASET" / "data").mkdir(parents=True)
    (tmp_path / "DATASET" / "data" / "metadata.json").write_text('{"regimen": {"env": "pendulum"}}')
    (tmp_path / "my.yaml").write_text("settings: {total_episodes: 20}\n")


@pytest.mark.parametrize(("page", "line"), REGIMEN, ids=lambda x: x)
def test_commands_can_be_read(page, line, placeholders):
    argv = shlex.split(line)[1:]
    if argv[0].startswith("--"):
        assert argv in (["--help"], ["--version"])
        return
    assert argv[0] in cli.VERBS
    if {"--help", "--help-all"} & set(argv):
        return
    argv = ["mypackage.envs:make_env" if token == "ENV" else token for token in argv if token != "--trust"]
    if argv[0] == "train":
        config, _ = read(argv[1:])
        resolve(config, native=False)
        return
    if argv[0] in ("sweep", "study"):
        {"sweep": sweep, "study": study}[argv[0]].read(argv[1:])
        return
    args = parse(classes_of(argv[0])[0], argv[1:], argv[0])
    target = next((getattr(args, n) for n in ("target", "env") if hasattr(args, n)), None)
    if isinstance(target, str) and target and not target.startswith(("models:/", "RUN", "runs/")):
        layers.check_env_name(target)
    if argv[0] == "presets" and args.name:
        args()


def test_other_commands_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, line in SHELL:
        words = shlex.split(line)
        if words[0] == "make":
            assert {w for w in words[1:] if "=" not in w} <= targets, f"{page.name}: {line}"
        for word in words if words[0].startswith("python") else ():
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in map(slug, HEADING.findall(file.read_text())), f"{target}: no such heading"


GUIDES = [page for page in PAGES if page.parent.name in ("docs", "algorithms", "coming_from")]
WITHOUT_EXAMPLE = {"glossary.md", "roadmap.md"}


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_a_page_begins_with_a_sentence_and_an_example(page):
    """What its reader will be able to do, then something that runs, before the second section; no section twice."""
    text = page.read_text()
    first = text.partition("\n")[2].lstrip()
    assert first[0].isalpha() or first[0] in "`*[", f"{page.name} begins with {first[:20]!r}"
    sections = [match.start() for match in re.finditer(r"^## ", text, re.MULTILINE)]
    opening = text[: sections[1]] if len(sections) > 1 else text
    assert "```" in opening or page.name in WITHOUT_EXAMPLE, f"{page.name}: no example at its beginning"
    prose = FENCE.sub("code\n", text)
    headings = HEADING.findall(prose)
    assert sorted(set(headings)) == sorted(headings)
    empty = re.findall(r"^(#+) (.*)\n+(#+) ", prose, re.MULTILINE)
    assert [title for outer, title, inner in empty if len(inner) <= len(outer)] == []


def test_no_local_paths():
    for page in PAGES:
        found = re.search(r"/(work|home|root|opt|tmp)/|localhost:\d+/simple", page.read_text())
        assert found is None, f"{page.name}: {found and found.group()}"


# --- code ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_compile(page):
    for body in blocks(page, "python"):
        compile(body, page.name, "exec")


PIECES = re.findall(
    r"^### (.*?)\n(.*?)(?=^##)", ARCHITECTURE.read_text().partition("## Where to add\n")[2], re.S | re.M
)
CODE = [
    (title, i, body) for title, text in PIECES for i, (lang, body) in enumerate(FENCE.findall(text)) if lang == "python"
]


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    """Drawing is tested elsewhere and takes longer than these runs."""
    monkeypatch.setattr("regimen.runs.delivery.try_plot_run", lambda path: ([], None))


@pytest.fixture
def registries():
    """What a block registers is forgotten after it."""
    known = [(entries, dict(entries)) for entries in (registry.ENVS, ALGORITHMS, NETWORKS)]
    yield
    for entries, before in known:
        entries.clear()
        entries.update(before)


def run_as_module(body: str, folder: Path, monkeypatch) -> None:
    """As a file of the user's would run: importable, in a working directory of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    name = f"docs_block_{abs(hash(body))}"
    (folder / f"{name}.py").write_text(body)
    importlib.invalidate_caches()
    importlib.import_module(name)


@pytest.mark.parametrize(("title", "index", "body"), CODE, ids=[f"{t}-{i}" for t, i, _ in CODE])
def test_where_to_add(title, index, body, tmp_path, monkeypatch, registries):
    run_as_module(body, tmp_path, monkeypatch)


def test_every_kind_of_addition_is_shown():
    assert {title for title, _, _ in CODE} == {
        "An environment",
        "An algorithm",
        "A metric",
        "A stopping rule",
        "A network",
    }


def test_readme_python(tmp_path, monkeypatch, registries):
    for body in blocks(ROOT / "README.md", "python"):
        run_as_module(body, tmp_path, monkeypatch)


def tiny_settings(**given):
    """The shortest training there is, with these settings."""
    return TINY | {"total_steps": 2 * TINY["rollout.steps"]} | given


def longer(*case):
    return pytest.param(*case, marks=pytest.mark.long)


# Blocks that are complete files: page -> their numbers. `LONG` ones train for a minute.
COMPLETE = {
    "getting_started.md": (0, 1),
    "extending.md": (0, 1, 2, 3, 4, 5, 6, 7),
    "empowerment.md": (0,),
    "environments.md": (0, 2),
    "encoders.md": (0,),
    **{f"coming_from/{page.name}": (0,) for page in (ROOT / "docs" / "coming_from").glob("*.md")},
    "offline.md": (0,),
    "other_simulators.md": (0,),
    "workflow_search.md": (0, 1),
    "studies.md": (0,),
    "tour.md": (0,),
    "worlds.md": (0,),
}
LONG = {("offline.md", 0), ("studies.md", 0)}
LONG |= {
    (f"coming_from/{name}.md", 0) for name in ("cleanrl", "air_traffic", "empowerment_learner", "update_strategies")
}
# Blocks that define something: (page, number) -> the test below that uses it.
USED = {
    ("agents.md", 0): "test_the_function_that_flies_agents",
    ("airspace.md", 0): "test_the_function_that_advises_aircraft",
    ("airspace_safety.md", 0): "test_the_function_that_finds_the_worst_shift",
    ("comparing.md", 0): "test_functions_of_runs",
    ("curricula.md", 0): "test_curricula",
    ("curricula.md", 1): "test_curricula",
    ("environments.md", 1): "test_the_conditions_of_platform",
    ("tracking.md", 0): "test_functions_of_runs",
    ("tracking.md", 1): "test_the_function_of_a_champion",
    ("tracking.md", 2): "test_functions_of_runs",
}
# Pages whose blocks other files run.
ELSEWHERE = {"dashboard.md": "dashboard/test_pages.py", "own_loop.md": "sources/test_buffer_errors.py"}


def snippet(page: str, number: int) -> str:
    return blocks(ROOT / "docs" / page, "python")[number]


def names_of(page: str, number: int) -> dict:
    """What a block defines."""
    scope: dict = {"__name__": "docs"}
    exec(compile(snippet(page, number), page, "exec"), scope)
    return scope


def test_every_snippet_is_run():
    """Those of the architecture and the README are run above."""
    known = {(page, n) for page, numbers in COMPLETE.items() for n in numbers} | set(USED)
    docs = ROOT / "docs"
    pages = [p for p in docs.rglob("*.md") if p.name not in (*ELSEWHERE, ARCHITECTURE.name)]
    assert known == {(p.relative_to(docs).as_posix(), n) for p in pages for n in range(len(blocks(p, "python")))}
    assert all(name in globals() for name in USED.values())
    assert len(CODE) == len(blocks(ARCHITECTURE, "python"))
    for page, file in ELSEWHERE.items():
        assert page in (ROOT / "tests" / file).read_text()


@pytest.mark.parametrize(
    ("page", "number"),
    [longer(page, n) if (page, n) in LONG else (page, n) for page, numbers in COMPLETE.items() for n in numbers],
)
def test_pages_run(page, number, tmp_path, monkeypatch, registries):
    run_as_module(snippet(page, number), tmp_path, monkeypatch)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "coming_from").glob("*.md")), ids=lambda page: page.stem)
def test_who_comes_from_elsewhere_finds_their_own_beside_ours(page, tmp_path):
    """Theirs as text, ours as Python and as a command, what differs; and what is told to be written can be read."""
    text = page.read_text()
    assert blocks(page, "text") and blocks(page, "python") and commands(page) and "## What differs, and why" in text
    assert "## Names" in text or "## What was claimed, and what was measured" in text
    for body in blocks(page, "yaml"):
        (tmp_path / "my.yaml").write_text(body)
        layers.build_config("cartpole", config_file=tmp_path / "my.yaml")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compilation_cache):
    """Two runs that differ in their learning rate."""
    folder = tmp_path_factory.mktemp("docs") / "runs"
    for lr in (1e-3, 1e-2):
        regimen.train("cartpole", out=str(folder / f"{lr:g}"), **tiny_settings(**{"algo.lr": lr, "eval.every": "1"}))
    return folder


def test_functions_of_runs(runs):
    label, value, (low, high) = names_of("comparing.md", 0)["best_learning_rate"](runs)
    assert (
        label in ("algo.lr 0.001", "algo.lr 0.01") and value > 1 and not (low > value or high < value)
    )  # nan: no interval
    points, returns = names_of("tracking.md", 0)["curves"](runs / "0.01")
    assert [steps for steps, _ in points] == sorted({steps for steps, _ in points}) and len(returns) > 0
    assert names_of("tracking.md", 2)["act"](runs / "0.01", [0.0, 0.0, 0.1, 0.0]) in (0, 1)


def test_the_conditions_of_platform():
    from regimen.envs.hybrid.platform import Platform

    scope: dict = {"NativeEnv": object}
    exec(snippet("environments.md", 1), scope)
    assert scope["Platform"].action_conditions == Platform.action_conditions


def curriculum_of(result):
    return yaml.safe_load((result.run_dir / "config.yaml").read_text())["curriculum"]


def test_curricula(monkeypatch, tmp_path, registries):
    """The function's course is that of a run; the class brings a curriculum by name."""
    monkeypatch.chdir(tmp_path)
    real = regimen.train
    monkeypatch.setattr(regimen, "train", lambda env, **given: real(env, out="run", **tiny_settings(**given)))
    result = names_of("curricula.md", 0)["staged"]()
    assert curriculum_of(result)["force"] == "5 @ 0, 8 @ 20k steps, 10 @ 50k steps"
    regimen.register_env("staged", names_of("curricula.md", 1)["StagedCartPole"], "staged")
    named = real("staged", out="named", curriculum="staged", **tiny_settings())
    assert set(curriculum_of(named)) == {"force", "gravity"}


def test_the_function_that_flies_agents(tmp_path):
    pytest.importorskip("pettingzoo")
    from regimen.envs.adapters.pettingzoo import to_pettingzoo

    result = regimen.train("probe/team", out=str(tmp_path / "run"), **tiny_settings())
    env = to_pettingzoo(regimen.make_env("probe/team"))
    names_of("agents.md", 0)["fly"](result.run_dir, env)
    assert env.agents == []


@pytest.fixture(scope="module")
def airspace_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("airspace") / "run"
    return regimen.train("airspace/head_on", out=str(out), **tiny_settings()).run_dir


@pytest.mark.long
def test_the_function_that_advises_aircraft(airspace_run):
    agents = scenario_files.load("merge_2x2").agents
    rows = [[getattr(a, key) for a in agents] for key in ("lat", "lon", "hdg_deg", "spd_kt", "waypoint")]
    heading, speed = names_of("airspace.md", 0)["advise"](airspace_run, *rows)
    turned = (heading - np.array(rows[2]) + 180) % 360 - 180
    assert np.abs(turned).max() <= 18.01 and np.abs(speed - 250).max() <= 10.01


@pytest.mark.long
def test_the_function_that_finds_the_worst_shift(airspace_run):
    assert names_of("airspace_safety.md", 0)["worst_shift"](airspace_run)


@pytest.mark.long
def test_the_function_of_a_champion(tmp_path):
    pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    goal = {"eval.every": "1", "stop.metric": "train/entropy", "stop.below": 5, "track.model_name": "tiny"}
    on = {"track": True, "tracking_uri": store}
    result = regimen.train("cartpole", out=str(tmp_path / "run"), **tiny_settings(**goal, **on))
    observations = np.random.default_rng(0).uniform(-0.1, 0.1, (5, 4)).astype(np.float32)
    actions = names_of("tracking.md", 1)["champion_actions"](observations, "tiny", store)
    np.testing.assert_array_equal(actions, result.policy.act_batch(observations))


def test_everything_that_can_be_brought_is_shown():
    parts = re.split(r"^## ", (ROOT / "docs" / "extending.md").read_text(), flags=re.MULTILINE)[1:]
    shown = {part.partition("\n")[0] for part in parts if "```python" in part}
    assert {"An environment", "Reward components", "A metric", "A network", "An algorithm", "A callback"} <= shown


EXAMPLES = {
    "quickstart.py": ["--quick"],
    "custom_env.py": ["--episodes", "10"],
    "callback.py": ["--target", "25"],
    "own_loop.py": ["--updates", "2", "--episodes", "3"],
    "continuous_world.py": ["--steps", "2048"],
    "search_curriculum.py": ["--quick"],
    "atari.py": ["--total-steps", "1024", "--max-episode-steps", "100"],
}
WITHOUT_RUN = {"own_loop.py"}  # writes no run directory
QUICK = {"quickstart.py", "callback.py", "own_loop.py"}


def test_every_example_is_run():
    assert set(EXAMPLES) == {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", [name if name in QUICK else longer(name) for name in EXAMPLES])
def test_examples(name, tmp_path, monkeypatch, capsys):
    if name == "atari.py":
        pytest.importorskip("ale_py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *EXAMPLES[name]])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert capsys.readouterr().out
    assert name in WITHOUT_RUN or list((tmp_path / "runs").glob("*/summary.json"))


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["ppo", "sac", "impala", "empowerment"])
def test_options_and_defaults(algo):
    config = ALGORITHMS[algo].config
    types, shown = field_types(config), {}
    for name, default, *_ in table(ROOT / "docs" / "algorithms" / f"{algo}.md", "Options"):
        field = name.strip("`")
        if not dataclasses.is_dataclass(types[field]):
            shown[field] = coerce(None if default in ("off", "none") else default.strip("`"), types[field], field)
    fields = [f for f in dataclasses.fields(config) if not dataclasses.is_dataclass(types[f.name])]
    assert shown == {f.name: f.default for f in fields}


def test_cql_options_and_defaults():
    """What it has of its own, and where its defaults are not SAC's."""
    types, shown = field_types(CQLConfig), {}
    for name, default, *_ in table(ROOT / "docs" / "algorithms" / "cql.md", "Options"):
        field = name.strip("`")
        shown[field] = coerce(None if default == "off" else default.strip("`"), types[field], field)
    theirs = {f.name: f.default for f in dataclasses.fields(SACConfig)}
    own = {f.name: f.default for f in dataclasses.fields(CQLConfig)}
    assert shown == {k: v for k, v in own.items() if k not in theirs or theirs[k] != v}


def test_bc_options_and_defaults():
    types, fields = field_types(BCConfig), {f.name: f.default for f in dataclasses.fields(BCConfig)}
    rows = table(ROOT / "docs" / "algorithms" / "bc.md", "Options")
    shown = {row[0].strip("`"): None if row[1] == "off" else row[1].strip("`") for row in rows}
    assert {name: coerce(value, types[name], name) for name, value in shown.items()} == fields


def test_every_algorithm_has_a_page():
    assert [name for name in ALGORITHMS if not (ROOT / "docs" / "algorithms" / f"{name}.md").is_file()] == []


def test_every_family_of_environments_has_a_picture():
    for page in ("classic_control", "hybrid", "durotaxis", "airspace", "network_defense", "empowerment", "worlds"):
        assert re.search(r"!\[.+?\]\(images/", (ROOT / "docs" / f"{page}.md").read_text()), page


def test_settings_of_the_schedule():
    text = (ROOT / "docs" / "schedules.md").read_text()
    for section in ("rollout", "eval", "log", "checkpoint", "stop"):
        for name in field_docs(field_types(TrainConfig)[section]):
            assert f"`{section}.{name}`" in text or f"--{section}.{name.replace('_', '-')}" in text, f"{section}.{name}"


def test_the_architecture_names_files_that_exist():
    text = ARCHITECTURE.read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|yaml))", text)) | set(
        re.findall(r"`([a-z_]+\.py)(?!:factory)", text)
    )
    places = [ROOT, ROOT / "src" / "regimen"]
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []


def test_one_transition_passes_through_eight_files():
    """Each step names a file that is there and a function in it, and no file is opened twice."""
    walk = ARCHITECTURE.read_text().partition("## One transition")[2].partition("The nouns are in")[0]
    steps = re.findall(r"^(\d)\. `([a-z_/]+\.py)`: `(\w+)`", walk, re.M)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(re.findall(r"^\d\.", walk, re.M)) + 1))
    files = [file for _, file, _ in steps]
    assert len(set(files)) == len(files) <= 8 and set(re.findall(r"`([a-z_/]+\.py)`", walk)) == set(files)
    for _, file, function in steps:
        assert f"def {function}(" in (ROOT / "src" / "regimen" / file).read_text(), f"{file}: {function}"


def test_the_rooms_are_those_of_the_contract():
    layout = ARCHITECTURE.read_text().partition("## The rooms")[2].partition("## One transition")[0]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    *rooms, root = contract
    assert re.findall(r"^([a-z]+)/ ", layout, re.M) == rooms
    assert [name for name in root.split(" : ") if not re.search(rf"\b{name}\b", layout)] == []
    folders = {path.name for path in (ROOT / "src" / "regimen").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders - set(root.split(" : ")) == set(rooms)  # a module without a room may be a package


def test_verbs_and_exit_codes_are_all_shown():
    text = RUN_DIRECTORY.read_text().partition("## The command line")[2]
    assert [verb for verb in cli.VERBS if f"regimen {verb} " not in text] == []
    codes = {int(code) for row in table(RUN_DIRECTORY, "The command line") for code in row[0].split(",")}
    raised = {cls.exit_code for cls in (errors.RegimenError, *errors.RegimenError.__subclasses__())}
    assert codes == raised | {0, 130, 143}


def test_presets_are_all_shown():
    rows = table(ROOT / "docs" / "schedules.md", "Presets")
    assert {code_names(row[0])[0] for row in rows} == set(presets.list_presets())


def test_environments_table():
    shown = {code_names(row[0])[0]: row for row in table(ROOT / "docs" / "environments.md", "Native environments")}
    native = [name for name, entry in registry.ENVS.items() if entry.gym_id]
    assert set(shown) == set(native)
    for name, (_, gym_id, observation, action, limit, threshold, policies) in shown.items():
        handle = registry.resolve(name)
        assert gym_id.strip("`") == registry.ENVS[name].gym_id
        assert (observation.strip("`"), action.strip("`")) == (
            describe(handle.observation_space),
            describe(handle.action_space),
        )
        assert int(limit) == handle.max_episode_steps
        assert (None if threshold == "none" else float(threshold)) == handle.return_threshold
        assert code_names(policies) == ["random", *handle.baselines]
        fields = [f.name for f in dataclasses.fields(handle.native)]
        text = (ROOT / "docs" / "classic_control.md").read_text()
        assert all(f"`{field}`" in text for field in fields), name


def test_probes_are_all_shown():
    text = (ROOT / "docs" / "environments.md").read_text()
    assert [name for name in registry.ENVS if name.startswith("probe/") and f"`{name}`" not in text] == []


def test_the_tour_lists_environments_and_algorithms():
    shown = {name for row in table(ROOT / "docs" / "tour.md", "Environments") for name in code_names(row[0])}
    named = [name for name, entry in registry.ENVS.items() if entry.gym_id]
    assert [name for name in [*named, "gym:ID", "gymnax:ID"] if name not in shown] == []
    algorithms = [code_names(row[0])[0] for row in table(ROOT / "docs" / "tour.md", "Algorithms")]
    assert sorted(algorithms) == sorted(ALGORITHMS)


def test_the_gallery_shows_every_algorithm_and_every_picture_made_for_it():
    text = (ROOT / "docs" / "gallery.md").read_text()
    pictures = set(re.findall(r"!\[.+?\]\(images/gallery/(\w+)\.\w+\)", text))
    assert set(ALGORITHMS) <= pictures and {path.stem for path in (ROOT / "docs/images/gallery").iterdir()} == pictures


def test_every_word_that_the_concepts_mark_is_in_the_glossary():
    """And no term is there twice: a link could mean only the first."""
    terms = HEADING.findall((ROOT / "docs" / "glossary.md").read_text())
    assert len(set(map(slug, terms))) == len(terms)
    marked = re.findall(r"\*\*(.+?)\*\*", FENCE.sub("", (ROOT / "docs" / "concepts.md").read_text()))
    assert marked
    for word in marked:
        term = re.fullmatch(r"\[(.+)\]\(glossary\.md#([\w-]+)\)", word)
        assert term is not None and slug(term[1]) == term[2], (
            f"{word}: a marked word leads to its entry in the glossary"
        )


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^\.\. auto(?:function|class):: regimen\.([\w.]+)$", text, re.M)
    public = [name for name in dir(regimen) if name != "__version__" and name not in domains()]
    public += [f"{name}.{function}" for name, domain in domains().items() for function in domain.functions]
    assert sorted(shown) == sorted(public)


@pytest.mark.parametrize("name", [name for name in dir(regimen) if inspect.isroutine(getattr(regimen, name))])
def test_every_parameter_of_a_public_function_is_explained(name):
    """In its docstring, or where the reference adds to it; the arguments of a function that is named are known."""
    function = getattr(regimen, name)
    said = inspect.getdoc(function) or ""
    summary = said.partition("\n")[0]
    assert re.match(r"[A-Z].*[.:`]$", summary) and len(summary) > 30, summary
    added = (
        (ROOT / "docs" / "api.md").read_text().partition(f"autofunction:: regimen.{name}\n")[2].partition("\n.. ")[0]
    )
    shared = (inspect.getdoc(regimen.evaluate) or "") if "`evaluate`" in said else ""
    internal = {"console", "command"} if name == "resume" else {"cls"}  # what the command line passes on
    parameters = set(inspect.signature(function).parameters) - internal
    assert [p for p in parameters if not re.search(rf"\b{p}\b", said + added + shared)] == []


def test_the_readme_is_three_screens_and_its_figures_are_those_of_the_results():
    text, results = (ROOT / "README.md").read_text(), (ROOT / "docs" / "results.md").read_text()
    assert len(text.splitlines()) <= 120
    for row in table(ROOT / "README.md", "Why one would choose it"):
        figures = re.findall(r"[\d,]*\d(?:\.\d+)?", " ".join(row[1:]))
        assert len(row) == 5 and figures
        lost = [x for x in figures if not re.search(rf"(?<![\d.,]){re.escape(x)}(?![.,]?\d)", results)]
        assert lost == [], row[0]


def test_run_directory_contract(tmp_path):
    """Every file, key and metric of a run is in the tables of run_directory.md, and PPO's are in ppo.md."""
    text = RUN_DIRECTORY.read_text().partition("## The run directory")[2].partition("## The command line")[0]
    result = regimen.train("probe/components", preset="debug", out=str(tmp_path / "run"), track=False)
    names = sorted(path.name for path in result.run_dir.iterdir())
    assert [name for name in names if f"`{name}" not in text] == []
    status = json.loads((result.run_dir / "status.json").read_text())
    assert [key for key in (*result.summary, *status) if f"`{key}`" not in text] == []
    metrics = {name for row in result.history for name in row}
    own = {"rollout/chosen", "eval/chosen"} | {n for n in metrics if "/reward/" in n}
    groups = {n for n in metrics - own if "/" in n and not n.startswith("train/")}
    assert [n for n in groups if f"`{n.partition('/')[2]}`" not in text] == []
    ppo = (ROOT / "docs" / "algorithms" / "ppo.md").read_text()
    shown = {re.sub(r"/(progress|effort)$", "/COMPONENT", n) for n in metrics if n.startswith("train/")}
    assert [n for n in shown if f"`{n}`" not in ppo] == []
    assert [n for n in result.episodes if n in ("episode", "update", "success") and f"`{n}`" not in text] == []
