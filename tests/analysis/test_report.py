import base64
import re
from html.parser import HTMLParser

from synthetic_run import make_run

from regimen.analysis.plots import plot_run
from regimen.analysis.report import write_report
from regimen.tracking.files import RunFiles

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
    assert "http" not in re.sub(r"base64,[^']*", "", text)
    for expected in (
        "498.25",
        "converged: mean of 50 episodes",
        "regimen train cartpole",
        "target_return: 475.0",
        "numpy",
    ):
        assert expected in text
    assert "prefers-color-scheme: dark" in text


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
