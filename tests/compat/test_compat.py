"""Files of earlier versions: policies of all of them load and act as they did, older checkpoints are read or refused in
one line, and a format that changes is noticed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import regimen
from compat.write import POLICIES, actions_of, write
from regimen.cli.main import main
from regimen.errors import StorageError
from regimen.files.run_dir import read_episodes, read_metrics

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "actions.json").is_file())
READ = ["0.1-safetensors", "0.1-digests", "0.3-encoders", "1.0"]  # whose checkpoints are read
NOW = "1.0"


def test_every_version_is_here():
    assert set(VERSIONS) == {"0.1-first", "0.1-orbax", "0.1-safetensors", "0.1-digests", "0.3-encoders", "1.0"}


@pytest.mark.parametrize("folder", [*(f"{name}/run" for name in VERSIONS), "0.1-orbax/pendulum"])
def test_a_policy_acts_as_it_did(folder):
    path = HERE / folder
    kept = json.loads((path.parent if path.name == "run" else path).joinpath("actions.json").read_text())
    policy = regimen.load_policy(path / "policy")
    actions = [policy.act(np.array(obs, np.float32)) for obs in kept["observations"]]
    np.testing.assert_allclose(actions, kept["actions"], atol=1e-6)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("version", ["1.0"])
def test_a_policy_of_every_kind_acts_as_it_did(version, name):
    """Their networks have other parts: what names these, or puts them together, has not changed."""
    folder = HERE / version / "policies" / name
    kept = json.loads((folder / "actions.json").read_text())
    found = actions_of(regimen.load_policy(folder / "policy"), kept["observations"])
    for action, expected in zip(found, kept["actions"], strict=True):
        assert action.keys() == expected.keys()
        for part, value in expected.items():
            np.testing.assert_allclose(action[part], value, atol=1e-5)


@pytest.mark.parametrize("name", VERSIONS)
def test_a_checkpoints_policy_loads(name):
    assert regimen.load_policy(HERE / name / "run", checkpoint="latest").meta["env_steps"] == 256


@pytest.mark.parametrize("name", VERSIONS)
def test_a_run_is_read(name, tmp_path, capsys):
    run = shutil.copytree(HERE / name / "run", tmp_path / "run", symlinks=True)
    assert [row["env_steps"] for row in read_metrics(run)] == [64, 128, 192, 256]
    assert len(read_episodes(run)["return"]) == read_metrics(run)[-1]["episodes"]
    assert main(["runs", "list", str(run), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "finished" and row["env_steps"] == 256
    for verb in ("compare", "diagnose"):
        assert main([verb, str(run)]) == 0
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0


@pytest.mark.parametrize("name", VERSIONS)
def test_a_checkpoint_is_read_or_refused_in_one_line(name, tmp_path):
    run = shutil.copytree(HERE / name / "run", tmp_path / "run", symlinks=True)
    if name not in READ:
        with pytest.raises(StorageError, match=r"earlier version of regimen; regimen 0\.1 reads it"):
            regimen.resume(run, total_steps=320)
        return
    assert regimen.resume(run, total_steps=320).summary["env_steps"] == 320


def test_the_format_is_the_one_that_is_kept(tmp_path):
    """Another key, file or schema than in the newest folder: see README.md beside this file."""
    write(tmp_path)
    assert outline(tmp_path) == outline(HERE / NOW)


def outline(folder: Path) -> dict[str, object]:
    """Files of a version, and keys and schemas of those in JSON."""
    out: dict[str, object] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "policies" not in p.parts):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            value = json.loads(path.read_text())
            out[name] = (sorted(value), value.get("schema"))
        elif path.suffix == ".yaml":
            out[name] = path.read_text().partition("digest ")[0]
        elif path.suffix == ".csv":
            out[name] = path.read_text().partition("\n")[0]
        elif path.suffix == ".safetensors":
            out[name] = path.stat().st_size
        else:
            out[name] = ""
    return out
