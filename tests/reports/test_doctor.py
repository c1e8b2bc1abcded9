"""The doctor sees what is here and says how to get what is not."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from regimen.cli.main import main
from regimen.reports import doctor
from regimen.reports.doctor import Check, exit_code

ROOT = Path(__file__).parents[2]


def state(found, name):
    return next(c.state for c in found if c.name == name)


def test_extras_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = set(extras) - {"all", "dev", "cuda"}
    assert known - {"dashboard"} <= set(doctor.EXTRAS) <= known | {"dashboard"}


def test_core_packages_are_those_of_the_package():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {line.partition(">")[0] for line in named}
    assert names | {"jaxlib"} == set(doctor.CORE)


def test_what_is_missing_comes_with_a_command(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found = [*doctor.extras(), *doctor.browser()]
    assert {c.state for c in found} == {"missing"} and all("install" in c.fix for c in found)
    assert exit_code(found) == 0
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "optax" else "1")
    assert exit_code(list(doctor.versions())) == 1
    assert next(c for c in doctor.versions() if c.name == "optax").fix == "pip install optax"


def test_little_room(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("U", (), {"free": 10**8})())
    monkeypatch.setattr(doctor, "memory_available", lambda: 10**8)
    found = list(doctor.places())
    assert (state(found, "disk"), state(found, "memory")) == ("warning", "warning")


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", refuse)
    assert doctor.writable(tmp_path) == Check(
        "runs", "error", f"cannot write in {tmp_path}: Permission denied", "cd to a folder of yours, or use --out"
    )


@pytest.mark.parametrize(("output", "message"), [("", "jax does not start: boom"), (None, "did not answer within 1 s")])
def test_a_jax_that_crashes_or_hangs(monkeypatch, output, message):
    def run(*args, **kwargs):
        if output is None:
            raise subprocess.TimeoutExpired("python", 1)
        return subprocess.CompletedProcess(args, 1, output, "trace\nboom\n")

    monkeypatch.setattr(doctor.subprocess, "run", run)
    found = list(doctor.devices(1.0))
    assert found[0].state == "error" and message in found[0].detail and "JAX_PLATFORMS" in found[0].fix


def test_cache_is_where_training_keeps_it(monkeypatch, tmp_path):
    from regimen.engines import device

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert doctor.cache_dir() == device.cache_dir()


def test_command(capsys):
    assert main(["doctor", "--json"]) == 0
    found = [Check(**c) for c in json.loads(capsys.readouterr().out)]
    assert state(found, "devices") == "ok" and state(found, "jax") == "ok"
    text = "\n".join(doctor.lines(found))
    assert "0 errors" in text and "\x1b" not in text
