"""Damaged run records, and pages about runs with hostile names: text stays text, files stay in their folder."""

from __future__ import annotations

import json
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fuzz_harness import attempt, target
from fuzz_mutations import damaged, mutated
from hypothesis import strategies as st

from congruency.continual.config import LearnerConfig
from congruency.files import write_together
from congruency.report.charts import Series, line_chart
from congruency.report.page import Figure, Page, render
from congruency.report.pictures import picture
from congruency.report.tables import Table, to_html, to_markdown, to_rich
from congruency.studies.analysis import report
from congruency.studies.analysis.runs import load
from congruency.studies.continual.tables import ContinualJob, StreamSettings
from congruency.studies.plan import Run
from congruency.studies.store import RunResult, Store
from congruency.training.record import RECORD_NAME, read_record

HOSTILE = [
    "</script><script>alert(1)</script>", "</title></style><img src=x onerror=alert(1)>", '" onload="alert(1)',
    "' onmouseover='alert(1)", "<svg/onload=alert(1)>", "]]><x>", "<!--", "-->", "&lt;b&gt;", "&#x3c;script&#x3e;",
    "${table} $$ $title", "{{7*7}}", "javascript:alert(1)", "\u202eevil\u202c", "\u2066rtl", "\x00\x01\x1b[31m",
    "\x85\u2028",
    "../../evil.txt", "/etc/passwd", "..", "a" * 5000, "\ud800", "\U0001f4a9\u0301", "[red]x[/red]", "| a | b |",
    "\n\n# x",
    "url(javascript:alert(1))", "} body { display: none", "</td></tr></table>", "%s %d {0}", "`rm -rf`",
]  # fmt: skip
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20), st.sampled_from(HOSTILE).map(lambda t: f"x{t}y"))
_VOID = {"meta", "link", "br", "img", "input", "hr", "col"}


class Markup(HTMLParser):
    """The elements and attributes of a page; fails where they do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: dict[str, int] = {}
        self.attributes: set[tuple[str, str]] = set()
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] = self.elements.get(tag, 0) + 1
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.references += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment came from somewhere: {data[:50]!r}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration came from somewhere: {data[:50]!r}")


def parsed(html: str) -> Markup:
    """The page's markup, whole."""
    html.encode("utf-8")  # it can be written
    markup = Markup()
    markup.feed(html)
    markup.close()
    assert not markup.open
    return markup


def _same_markup(hostile: Markup, plain: Markup) -> None:
    """A name may change the text and nothing else: the same elements as often, the same attributes."""
    assert hostile.elements == plain.elements
    assert hostile.attributes - {("td", "class")} == plain.attributes, "long text may wrap, which a class says"
    assert hostile.references == plain.references
    assert hostile.elements["script"] == 1, "the one that draws the charts"
    assert not any(name.startswith("on") for _, name in hostile.attributes)


def _page(text: str) -> Page:
    chart = line_chart([Series(text, [1, 2], [1.0, 2.0])], title=text, x_label=text, y_label=text)
    shown = picture(b"\x89PNG", text) + chart
    return Page(
        title=text, lead=text, command=text, table=Table(text, [text, text], [[text, text]]), findings=[text],
        figures=[Figure(text, chart, text), Figure(text, shown, text)], figures_note=text,
        figures_title=text, notes=[(text, text)], made=text,
    )  # fmt: skip


@target("a page whose every text is hostile has the elements and attributes of one whose texts are plain", 120)
def pages(data: st.DataObject, folder: Path) -> str:
    text = data.draw(NAMES.filter(bool))  # an empty one is left out, with its element
    found = attempt(lambda: render(_page(text)), folder)
    assert isinstance(found, str)
    _same_markup(parsed(found), parsed(render(_page("plain words"))))
    to_markdown(Table(text, [text], [[text]]))
    to_rich(Table(text, [text], [[text]]))
    to_html(Table(text, [text], [[text]]))
    attempt(lambda: write_together(folder, {"page.html": found}), folder)
    return "rendered"


def _record(method: str, task: str, key: str, figure: str) -> list[dict[str, Any]]:
    first = {
        "kind": "run", "seed": 0, "versions": {}, "task": {"name": task, key: task},
        "config": {"epochs": 1, "seed": 0, "method": {"name": method, "mode": method, "window": 3}},
    }  # fmt: skip
    steps = [{"kind": "step", "epoch": 0, "step": i, "loss": 1.0 / (1 + i), "error": 50.0} for i in range(3)]
    epoch = {"kind": "epoch", "epoch": 0, "step": 3, "loss": 0.5, "congruency": 0.1, "corrected_share": 0.2,
             "evaluation": {figure: 1.5, "error": 20.0}}  # fmt: skip
    return [first, *steps, epoch]


def _write(folder: Path, name: str, lines: list[Any]) -> Path:
    run = folder / name
    run.mkdir()
    path = run / RECORD_NAME
    path.write_text("".join(json.dumps(line, default=lambda other: str(type(other))) + "\n" for line in lines))
    return path


@target("a report of runs with hostile methods, settings and figures: no script, handler or link; elements nest", 60)
def report_names(data: st.DataObject, folder: Path) -> str:
    chosen = [data.draw(NAMES) for _ in range(4)]
    hostile = [_write(folder, "a", _record("baseline", *chosen[1:])), _write(folder, "b", _record(*chosen))]
    command = data.draw(NAMES)

    def compose(paths: list[Path]) -> str:
        loaded = load(paths)
        if not loaded.runs:
            raise ValueError("; ".join(loaded.messages))
        return render(report.compose(loaded, command))

    found = attempt(lambda: compose(hostile), folder)
    if isinstance(found, Exception):
        return "refused"
    markup = parsed(found)
    assert markup.elements["script"] == 1, "the one that draws the charts"
    assert not any(name.startswith("on") for _, name in markup.attributes)
    assert set(markup.references) == {"#charts", "#reading"}
    attempt(lambda: write_together(folder, {"report.html": found}), folder)
    return "rendered"


@target("damaged run records: read, or an error that names the record; a report skips them with a reason", 120)
def run_records(data: st.DataObject, folder: Path) -> str:
    lines: list[Any] = _record("dcl", "digits", "model", "accuracy")
    if data.draw(st.booleans()):
        lines = mutated(data, lines)
    lines = lines if isinstance(lines, list) else [lines]
    path = _write(folder, "run", lines)
    how = data.draw(st.sampled_from(["whole", "damage", "deep", "long number", "bytes"]))
    raw = path.read_bytes()
    if how == "damage":
        raw = damaged(data, raw)
    elif how == "deep":
        raw += b"[" * 50_000 + b"\n"
    elif how == "long number":
        raw += b'{"kind": "step", "step": ' + b"9" * 5000 + b"}\n"
    elif how == "bytes":
        raw = data.draw(st.binary(max_size=60)) + b"\n"
    path.write_bytes(raw)
    found = attempt(lambda: read_record(path), folder, named=(RECORD_NAME,))
    loaded = attempt(lambda: load([path], unfinished=True), folder)
    assert not isinstance(loaded, Exception), "load leaves damaged records out, and says so"
    if isinstance(found, Exception):
        assert not loaded.runs
        assert loaded.messages
        return "refused"
    if loaded.runs:
        attempt(lambda: parsed(render(report.compose(loaded, "command"))), folder)
    return "read"


@target("a run of a row of any name is kept in one file and comes back; damaged lines are run again", 60)
def kept_runs(data: st.DataObject, folder: Path) -> str:
    job = ContinualJob(StreamSettings(table="mnist_r"), LearnerConfig(data.draw(NAMES), "gem"))
    run, store = Run(job.method.name, job, 0), Store(folder / "study")
    found = attempt(lambda: store.add(run, RunResult({"accuracy": 0.5}, {"matrix": [[0.5]]})), folder)
    if isinstance(found, Exception):
        return "refused"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["finished.jsonl"]
    assert store.load()[run.key].figures == {"accuracy": 0.5}
    path = store.folder / "finished.jsonl"
    path.write_bytes(damaged(data, path.read_bytes()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which says that a line is damaged
        attempt(lambda: store.pending([run]), folder)
    return "kept"
