"""The documentation is true: commands parse, code runs, links lead somewhere, tables agree with the code."""

import dataclasses
import importlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import yaml

import regimen
from regimen import errors, presets, settings
from regimen.cli import main as cli
from regimen.cli.flags import field_docs, parse
from regimen.cli.train import read
from regimen.config import ALGORITHMS, TrainConfig
from regimen.envs import registry
from regimen.hyperparameters import BCConfig, CQLConfig, SACConfig
from regimen.networks import NETWORKS
from regimen.spaces import describe
from regimen.validation import coerce, field_types

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
ARCHITECTURE = ROOT / "docs" / "architecture.md"
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
    config = settings.to_dict(settings.build_config("cartpole"))
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
    verbs = [verb for group in cli.VERBS.values() for verb in group]
    assert argv[0] in verbs
    if "--help" in argv:
        return
    argv = ["mypackage.envs:make_env" if token == "ENV" else token for token in argv]
    if argv[0] == "train":
        config, _ = read(argv[1:])
        settings.resolve_rollout(config.rollout, native=False)
        return
    module = importlib.import_module(f"regimen.cli.{argv[0].replace('-', '_')}")
    if argv[0] in ("sweep", "study"):
        module.read(argv[1:])
        return
    cls = next(v for k, v in vars(module).items() if k.endswith("Args") and dataclasses.is_dataclass(v))
    args = parse(cls, argv[1:], argv[0])
    target = next((getattr(args, n) for n in ("target", "env") if hasattr(args, n)), None)
    if isinstance(target, str) and target and not target.startswith(("models:/", "RUN", "runs/")):
        settings.check_env_name(target)
    if argv[0] == "presets" and args.name:
        module.run(argv[1:])


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
    monkeypatch.setattr("regimen.training.result.try_plot_run", lambda path: ([], None))


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


PAGES_THAT_RUN = {page: blocks(ROOT / "docs" / page, "python") for page in ("getting_started.md", "extending.md")}


@pytest.mark.parametrize(
    ("page", "index"), [(page, i) for page, bodies in PAGES_THAT_RUN.items() for i in range(len(bodies))]
)
def test_pages_run(page, index, tmp_path, monkeypatch, registries):
    """Every block is a complete file."""
    run_as_module(PAGES_THAT_RUN[page][index], tmp_path, monkeypatch)


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
}
WITHOUT_RUN = {"own_loop.py"}  # writes no run directory


def test_every_example_is_run():
    assert set(EXAMPLES) == {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name, tmp_path, monkeypatch, capsys):
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


def test_layout_names_every_module():
    layout = blocks(ARCHITECTURE, "text")[1]
    modules = [path for path in (ROOT / "src" / "regimen").rglob("*.py") if not path.name.startswith("__")]
    # Shown as folders.
    whole = ("cli", "classic", "hybrid", "durotaxis", "airspace", "network_defense", "adapters", "study")
    assert [p.name for p in modules if p.parent.name not in whole and p.name not in layout] == []


def test_verbs_and_exit_codes_are_all_shown():
    text = ARCHITECTURE.read_text().partition("## The command line")[2].partition("## Where to add")[0]
    verbs = [verb for group in cli.VERBS.values() for verb in group]
    assert [verb for verb in verbs if f"regimen {verb} " not in text] == []
    codes = {int(code) for row in table(ARCHITECTURE, "The command line") for code in row[0].split(",")}
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


def test_readme_lists_environments_and_algorithms():
    text = (ROOT / "README.md").read_text()
    named = [name for name, entry in registry.ENVS.items() if entry.gym_id]
    assert [name for name in [*named, "gym:ID", "gymnax:ID", "ppo"] if f"`{name}`" not in text] == []


def test_run_directory_contract(tmp_path):
    """Every file, key and metric of a run is in the tables of architecture.md, and PPO's are in ppo.md."""
    text = ARCHITECTURE.read_text().partition("## The run directory")[2].partition("## The command line")[0]
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
