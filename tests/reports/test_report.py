import base64
import re
from html.parser import HTMLParser

from regimen.envs.metric import Metric, to_table
from regimen.files.run_dir import RunFiles
from regimen.reports.plots import plot_run
from regimen.reports.run_report import write_report
from synthetic_run import make_run

VOID = {"meta", "img"}


class Tags(HTMLParser):
    """Collects addresses and checks that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.names = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parse(text):
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def test_report_is_one_self_contained_file(tmp_path):
    run = make_run(tmp_path / "run", updates=12)
    pictures = plot_run(run)
    path = write_report(run)
    assert path == run / "report.html"
    text = path.read_text()
    tags = parse(text)
    assert len(tags.addresses) == len(pictures)
    for address in tags.addresses:
        assert base64.b64decode(address.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert "://" not in re.sub(r"base64,[^']*", "", text)
    assert "default-src 'none'" in text and "script-src" not in text
    for expected in (
        "498.25",
        "converged: mean of 50 episodes",
        "regimen train cartpole",
        "target_return: 475.0",
        "numpy",
    ):
        assert expected in text
    assert "prefers-color-scheme: dark" in text


def test_why_it_stopped_is_a_sentence_and_metrics_have_their_labels(tmp_path):
    declared = to_table({"los": Metric("max", label="share with a conflict")})
    with RunFiles.create(tmp_path / "run", {"env": "x"}, "regimen train x") as files:
        why = {"stop_reason": "max_steps", "stop_detail": "the budget of 9 steps is spent"}
        files.summary(why | {"eval_return_mean": 1.5, "eval_metrics": {"return_mean": 1.5, "los": 0.25}})
        files.status(state="finished", metrics=declared)
    text = write_report(tmp_path / "run").read_text()
    assert "Stopped: the budget of 9 steps is spent<" in text and "share with a conflict" in text


def test_markup_in_run_files_is_escaped(tmp_path):
    evil = "<script>alert('x')</script>"
    with RunFiles.create(tmp_path / "run", {"env": evil, "env_args": {evil: evil}}, evil) as files:
        files.summary({"stop_reason": evil, evil: evil, "eval_return_mean": 1.5})
        files.status(state="failed", versions={evil: evil})
    text = write_report(tmp_path / "run").read_text()
    assert "script" not in parse(text).names
    assert "&lt;script&gt;" in text


def test_report_of_a_run_that_has_only_started(tmp_path):
    with RunFiles.create(tmp_path / "run", {"env": "cartpole"}, "regimen train cartpole"):
        pass
    text = write_report(tmp_path / "run").read_text()
    assert "not finished" in text and "<h2>Curves" not in text


def test_a_diagnosis_and_pictures_of_the_domain_are_in_it(tmp_path):
    with RunFiles.create(tmp_path / "run", {"env": "cartpole", "algorithm": "ppo"}, "regimen train cartpole") as files:
        for i in range(1, 40):
            files.log({"env_steps": i, "updates": i, "train/approx_kl": 0.5 if i % 5 == 0 else 0.001})
        files.summary({})
        files.status(state="finished")
    (tmp_path / "run" / "replays" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "replays" / "deep" / "a_b.gif").write_bytes(b"GIF89a")
    text = write_report(tmp_path / "run").read_text()
    assert "updates move the policy too far" in text and "algo.target_kl" in text
    assert "data:image/gif;base64," in text and "replays, deep, a b" in text
    assert "Nothing was found to be wrong" not in text


def test_a_picture_too_large_for_a_page_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("regimen.reports.run_report.LARGEST", 3)
    run = make_run(tmp_path / "run", updates=4)
    (run / "replays").mkdir()
    (run / "replays" / "long.gif").write_bytes(b"GIF89a")
    text = write_report(run).read_text()
    assert "Not in this page: long.gif" in text and "image/gif" not in text


def test_a_group_of_seeds(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "group" / f"seed-{seed}", updates=20, seed=seed)
    path = write_report(tmp_path / "group", tmp_path / "out.html")
    text = path.read_text()
    parse(text)
    assert path == tmp_path / "out.html" and text.count("<td>finished</td>") == 2 and "2 seeds" in text


def test_damaged_metrics_do_not_stop_it(tmp_path):
    run = make_run(tmp_path / "run", updates=20)
    rows = ['{"env_steps": "x", "rollout/return_mean": {}, "train/entropy": [1]}'] * 20
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    assert "cartpole" in write_report(run).read_text()
