"""`regimen solve`: what it prints, writes and refuses."""

import csv
import dataclasses
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import regimen
from regimen.cli.main import main
from regimen.domains.empowerment.theory import Theory


def test_prints_the_start(capsys):
    assert (
        main(
            ["solve", "world/tiny3", "--beta-r", "5", "--gamma-h", ".9", "--gamma-r", ".9", "--zeta", "1", "--eta", "1"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "6 states, 15 with time; 25 joint actions; 3 steps" in out and "V_r -5.941401" in out
    assert "west" in out and "0.715704" in out and "1,0: 0.38275" in out and "bits" in out


def test_json_and_files(tmp_path, capsys):
    npz, table = str(tmp_path / "a" / "s.npz"), str(tmp_path / "s.csv")
    assert main(["solve", "world/tiny3", "--json", "--out", npz, "--env.max_episode_steps", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    solution = regimen.empowerment.solve("world/tiny3", env_args={"max_episode_steps": 4})
    assert found["v_r"] == solution.at().v_r and found["horizon"] == 4 and found["theory"]["prior"] == "heuristic"
    assert found["theory"]["beta_h"] == "inf"  # the world's own
    assert found["policy"]["west"] == solution.at().pi_r[1] and found["humans"][0]["v_h_e"]["0,0"] == pytest.approx(1)
    with np.load(npz, allow_pickle=False) as data:
        live = sum(int(solution.live(t).sum()) for t in range(4))
        assert len(data["v_r"]) == len(data["time"]) == live and data["v_r"][0] == solution.at().v_r
        assert data["states"][data["state"][0]].tolist() == solution.table.states[0].tolist()
    assert main(["solve", "world/tiny3", "--out", table, "--env.max_episode_steps", "4"]) == 0
    with open(table) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == live and float(rows[0]["v_r"]) == solution.at().v_r


def test_a_map_file_and_a_computed_prior(tmp_path, capsys):
    file = tmp_path / "mine.txt"
    file.write_text("Hu Ro .\n")
    assert (
        main(["solve", str(file), "--prior", "cautious", "--beta-h", "inf", "--json", "--env.max_episode_steps", "2"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["theory"]["beta_h"] == "inf" and "v_h_m" in found["humans"][0]


def test_stationary_reports_its_residual(capsys):
    assert main(["solve", "world/tiny3", "--stationary", "--gamma-r", ".9", "--beta-r", "2", "--steps", "2"]) == 0
    assert "converged: residual" in capsys.readouterr().out
    assert main(["solve", "world/tiny3", "--stationary", "--max-sweeps", "25", "--beta-r", "2", "--steps", "2"]) == 1
    out, err = capsys.readouterr()
    assert "NOT CONVERGED: residual" in out and "above --tolerance 1e-09" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "regimen solve needs WORLD"),
        (["world/tiny4"], 3, "did you mean 'world/tiny3'?"),
        (["cartpole"], 3, "cartpole is no world of humans and robots"),
        (["world/tiny3", "--zeta", "0.5"], 3, "zeta: 0.5 is out of range; it must be at least 1"),
        (["world/tiny3", "--xi", "0"], 3, "xi: 0 is out of range"),
        (["world/tiny3", "--eta", "-1"], 3, "eta: -1 is out of range"),
        (["world/tiny3", "--env.max_episode_steps", "-3"], 3, "env.max_episode_steps: -3 is out of range"),
        (["world/tiny3", "--env.possible_goals", "7,7"], 3, "'7,7' is outside the map"),
        (["world/tiny3", "--env.possible_goals", "2,0"], 4, "human 0 can attain none of its goals"),
        (["world/bush7x3", "--limit", "2000"], 3, "too large to solve exactly"),
        (["world/tiny3", "--out", "x.json"], 3, "ends in .npz or .csv"),
        (["world/tiny3", "--beta-r", "5", "--betah", "3"], 2, "did you mean '--beta-"),
        (["world:nowhere.txt"], 4, "cannot be read"),
        (["nowhere.yaml"], 4, "nowhere.yaml: there is no such file"),
        (["world/tiny3", "--beta-h", "3"], 3, "beta_h: 3 would change nothing"),
        (["world/tiny3", "--max-sweeps", "9"], 2, "--max-sweeps: only a stationary solution has it"),
        (["world/way1x5", "--env.map", "Ro Hu Hu Hu Hu Hu Hu Hu ."], 3, "too large to solve exactly: 390,625 joint"),
        (["world/way1x5", "--env.map", "Ro Hu Hu Hu Hu Hu Hu Hu Hu Hu Hu ."], 3, "with 1,024 outcomes each"),
    ],
)
def test_bad_input_is_one_line(arguments, code, message, capsys):
    assert main(["solve", *arguments]) == code
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


PAGE = Path(__file__).parents[3] / "docs" / "empowerment.md"
REFERENCE = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| `regimen solve ")
]


@pytest.mark.parametrize(("command", "v_r", "action", "q_r", "probability"), REFERENCE, ids=lambda x: x)
def test_reference_table(command, v_r, action, q_r, probability, capsys):
    assert main([*shlex.split(command.strip("`"))[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["v_r"] == pytest.approx(float(v_r), abs=1e-5)
    assert found["q_r"][action] == pytest.approx(float(q_r), abs=1e-5)
    assert found["policy"][action] == pytest.approx(float(probability), abs=1e-5)


def test_the_page_names_every_parameter():
    text = PAGE.read_text()
    for field in dataclasses.fields(Theory):
        row = next(line for line in text.splitlines() if f"`--{field.name.replace('_', '-')}`" in line)
        default = row.split("|")[3].strip()
        right = "none" if field.default is None else field.default
        assert default == (f"{right:g}" if isinstance(right, float) else right)
