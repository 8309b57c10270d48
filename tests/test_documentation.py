"""The documentation: its code runs, its commands exist, its site builds without a warning, its links lead somewhere."""

import copy
import importlib
import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock
from urllib.parse import unquote, urlsplit

import filelock  # torch needs it too
import pytest
import torch
import typer
import yaml
from browser import Browser, check_page, needs_browser
from learning import SEEDS, run_block
from typer.testing import CliRunner

import congruency
from benchmarks import floors
from congruency import cli
from congruency.report.numbers import p_value, with_margin
from congruency.studies.results import paired, read_results
from congruency.studies.statistics import mean_interval, paired_difference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if DOCS / "results" not in path.parents)
INTEGRATIONS = ("lightning", "transformers", "avalanche", "torchmetrics")
FAMILIES = (
    "congruency",
    "congruency.continual",
    "congruency.classification",
    "congruency.datasets",
    "congruency.language",
    "congruency.saliency.data",
    "congruency.saliency.metrics",
    "congruency.saliency.models",
    "congruency.training",
)
NEEDS = {"howto/avalanche.md": "avalanche", "howto/transformers.md": "transformers", "howto/lightning.md": "lightning"}
SEVERAL_SEEDS = {  # pages whose code trains and takes a second or two
    "index.md", "quickstart.md", "congruency.md", "extend/constraints.md", "guides/continual.md", "guides/looking.md",
    "howto/lightning.md", "howto/pytorch.md", "howto/torchmetrics.md", "troubleshooting.md",
}  # fmt: skip
DIVERGES = DOCS / "choosing.md"  # the one example that does not learn, by intent; it has a test of its own
SHORT = "# takes seconds"
LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href", "use": "href"}
UsageError = typer.BadParameter.__mro__[1]  # click's own, or the copy inside newer typers


def name(path):
    return path.relative_to(ROOT if path.parent == ROOT else DOCS).as_posix()


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(path):
    lines = [line for block in blocks(path, "sh") for line in block.splitlines()]
    lines += re.findall(r"^    (congruency .+)$", path.read_text("utf-8"), re.MULTILINE)
    return [line for line in lines if line.startswith("congruency ")]


@pytest.fixture
def registers():
    """Pages may add to the registers; what they added is gone afterwards."""
    places = [
        ("congruency.continual", "LEARNERS"),
        ("congruency.studies.continual.tables", "TABLES"),
        ("congruency.studies.classification.grids", "GRIDS"),
        ("congruency.studies.classification.grids", "TITLES"),
    ]
    held = [getattr(importlib.import_module(module), register) for module, register in places]
    patches = [mock.patch.dict(register) for register in held]
    for patch in patches:
        patch.start()
    yield
    for patch in patches:
        patch.stop()


def pages_with_seeds():
    for page in PAGES:
        if blocks(page, "python") and page != DIVERGES:
            for seed in SEEDS if name(page) in SEVERAL_SEEDS else SEEDS[:1]:
                yield pytest.param(page, seed, id=f"{name(page)}-{seed}")


@pytest.mark.parametrize(("path", "seed"), list(pages_with_seeds()))
def test_code_blocks_run_and_learn(path, seed, tmp_path, monkeypatch, registers):
    """All blocks of a page in order, in one namespace: what a reader gets who types them one after the other."""
    needed = NEEDS.get(name(path))
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    monkeypatch.chdir(tmp_path)
    # tests/datasets would pass for the package `datasets`, which transformers likes to import
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not Path(place).is_relative_to(ROOT / "tests")])
    module = type(sys)("page")  # classes of the page must find the module they say they are from
    monkeypatch.setitem(sys.modules, "page", module)
    torch.manual_seed(seed)
    for block in blocks(path, "python"):
        run_block(block, name(path), vars(module))


def test_momentum_diverges_as_the_page_says():
    """The block on momentum shows a divergence: its runs end where the page's table says, seed by seed."""
    (block,) = blocks(DIVERGES, "python")
    found = {}
    exec(compile(block, name(DIVERGES), "exec"), found)
    losses = found["final_losses"]
    assert all(len(runs) == 5 for runs in losses.values())
    for stable in ((0.9, "none"), (0.9, "default"), (0.0, "paper")):
        assert max(losses[stable]) < 1e-9
    assert min(losses[0.9, "paper"]) > 1e8
    row = r"^\| (?:no )?momentum.* \| \**(\S+) to (\S+?)\** \|$"
    table = re.findall(row, DIVERGES.read_text("utf-8"), re.MULTILINE)
    assert len(table) == len(losses)
    for (least, most), runs in zip(table, losses.values(), strict=True):  # by magnitude: machines round differently
        assert float(least) / 1000 < min(runs) <= max(runs) < float(most) * 1000


@pytest.mark.parametrize("path", [page for page in [*PAGES, ROOT / "README.md"] if commands(page)], ids=name)
def test_commands_are_understood(path, tmp_path, monkeypatch):
    """Every command and option exists, and its values are of the right kind; the short ones are run, in their order."""
    monkeypatch.chdir(tmp_path)
    app = cli.build()
    for line in commands(path):
        _, *words = shlex.split(line, comments=True)
        understood(typer.main.get_command(app), words)
        if line.rstrip().endswith(SHORT):
            result = CliRunner().invoke(app, words, env={"COLUMNS": "100", "TERM": "dumb"})
            assert result.exit_code == 0, f"{line}\n{result.output}"


def test_the_command_page_names_every_command():
    named = set(re.findall(r"^\| `congruency ([\w-]+)`", (DOCS / "command.md").read_text("utf-8"), re.MULTILINE))
    assert named == set(typer.main.get_command(cli.build()).commands)


def test_commands_of_the_results_are_understood():
    """Those that the results pages tell a reader to type."""
    command, count = typer.main.get_command(cli.build()), 0
    for path in (DOCS / "results").rglob("*.md"):
        text = path.read_text("utf-8")
        for line in [*re.findall(r"`(congruency [^`]+)`", text), *re.findall(r"^    (congruency .+)$", text, re.M)]:
            words = shlex.split(line)[1:]
            if len(words) == 1:  # its name, not how it is called
                assert words[0] in command.commands, line
            elif "..." not in line:
                understood(command, words)
                count += 1
    assert count


def understood(command, words):
    """Parse as the command line would, and stop before anything is done; the folder of data is the reader's."""
    words = ["." if before == "--data" else word for before, word in zip(["", *words], words, strict=False)]
    context = command.make_context(command.name or "congruency", words)
    while hasattr(context.command, "resolve_command"):  # a group of commands
        left = [*context._protected_args, *context.args]
        if not left:  # the group alone, such as `congruency reproduce --list`
            return
        _, inner, rest = context.command.resolve_command(context, left)
        context = inner.make_context(inner.name, rest, parent=context)


def test_commands_that_do_not_exist_are_noticed():
    command = typer.main.get_command(cli.build())
    for wrong in (["demo", "--sees", "1"], ["demonstrate"], ["saliency", "guess"], ["demo", "--seeds", "many"]):
        with pytest.raises(UsageError):
            understood(command, wrong)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built once as `make docs` builds it: a warning is an error."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    out = shared / "site"
    with filelock.FileLock(shared / "site.lock"):
        if not out.exists():
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
                cwd=ROOT, capture_output=True, text=True, env=quiet(), check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert "WARNING" not in done.stdout + done.stderr
    return {path.relative_to(out): Page(path) for path in out.rglob("*.html")}, out


def quiet():
    return {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}


class Page(HTMLParser):
    """Where a page can be linked to, where it links, what it loads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loads, self.text = {""}, [], [], path.read_text("utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if attrs.get(LOADS.get(tag, "")):
            self.loads.append(attrs[LOADS[tag]])


def test_every_internal_link_leads_somewhere(site):
    pages, out = site
    checked = 0
    for place, page in pages.items():
        if place.name == "404.html":
            continue  # its links are from the root of a server
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = place if not parts.path else Path(unquote(parts.path))
            file = out / target if target is place else (out / place.parent / target).resolve()
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{place} links to {link}, which is not there"
            other = pages.get(file.relative_to(out.resolve() if target is not place else out))
            if other is not None:
                assert unquote(parts.fragment) in other.anchors | {"__skip"}, f"{place} links to {link}: no such anchor"
            checked += 1
    assert checked > 500


def test_pages_load_nothing_from_elsewhere(site):
    pages, out = site
    for place, page in pages.items():
        outside = [load for load in page.loads if urlsplit(load).netloc]
        assert not outside, f"{place} loads {outside}"
    for sheet in out.rglob("*.css"):
        outside = re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*", sheet.read_text("utf-8"))
        assert not outside, f"{sheet.relative_to(out)} loads {outside}"


def test_links_to_elsewhere_are_these(site):
    """Listed, not fetched: a new one is looked at by a person."""
    pages, _ = site
    outside = {link for page in pages.values() for link in page.links if urlsplit(link).netloc}
    assert outside == {
        "https://avalanche.continualai.org",
        "https://github.com/luoyan407/congruency",
        "https://hypothesis.readthedocs.io",
        "https://torchjd.org",
        "https://github.com/matthias-k/pysaliency",
        "https://saliency.tuebingen.ai",
    }


def test_every_public_name_has_its_place_in_the_reference(site):
    pages, _ = site
    anchors = set().union(*(page.anchors for place, page in pages.items() if place.parts[0] == "reference"))
    for family in FAMILIES:
        for public in importlib.import_module(family).__all__:
            if public == "__version__":
                continue
            same = getattr(importlib.import_module(family), public)  # what two families share stands in one place
            places = {f"{f}.{public}" for f in FAMILIES if getattr(importlib.import_module(f), public, None) is same}
            if (ROOT / "src" / family.replace(".", "/") / f"{public}.py").exists():
                places = set()  # the name of a module too: what stands under it would be the module
            places.add(f"{getattr(same, '__module__', family)}.{public}")
            assert places & anchors, f"{family}.{public} is on no reference page"
    for module in INTEGRATIONS:  # not imported: the framework need not be there
        text = (ROOT / "src" / "congruency" / "integrations" / f"{module}.py").read_text("utf-8")
        for public in re.search(r"^__all__ = \[(.*)\]$", text, re.MULTILINE)[1].replace('"', "").split(", "):
            assert f"congruency.integrations.{module}.{public}" in anchors, f"{module}.{public}"


def test_no_markup_of_docstrings_is_left_over(site):
    pages, _ = site
    for place, page in pages.items():
        assert not re.search(r":(class|meth|func|attr|mod|data):", page.text), place


def test_cost_tables_are_those_of_the_measurements():
    """A reader of the file in the repository sees them too: `make cost-tables` writes them there."""
    tables = runpy.run_path(str(DOCS / "making" / "cost_tables.py"))
    page = (DOCS / "cost.md").read_text("utf-8")
    assert tables["filled"](page) == page
    emptied = re.sub(r"^(<!-- \w+: \w+ -->)\n.*?^(<!-- end -->)$", r"\1\n\2", page, flags=re.M | re.S)
    assert emptied.count("<!-- end -->") == 6
    assert len(emptied) < 0.7 * len(page)
    assert tables["filled"](emptied) == page


def test_cost_page_shows_what_was_measured(site):
    """The times on the page are those in the benchmark's file, rounded to three digits."""
    pages, _ = site
    text = pages[Path("cost.html")].text
    for device in ("cpu", "cuda"):
        measured = json.loads((ROOT / "benchmarks" / "results" / f"bench-{device}.json").read_text())
        row = next(r for r in measured["corrections"] if r["workload"] == "ResNet-50" and r["references"] == 1)
        seconds = row["corrected"]
        shown = f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
        assert f'<td style="text-align: right;">{shown}</td>' in text


def test_evidence_on_the_choosing_page_stands_in_the_results():
    """Every mean with an interval that is not of the demo is found, digit for digit, in a results table."""
    page = (DOCS / "choosing.md").read_text("utf-8")
    own = page.partition("CIFAR-10, with a ResNet-9 of half")[2]
    sources = (
        "mnist_r", "mnist_r_tuned", "mnist_r_margins", "mnist_p", "mnist_p_tuned", "mnist_p_margins", "ablation_digits",
        "cifar10_grid", "cifar100_noisy", "cifar100_noisy_half_rate",
    )  # fmt: skip
    tables = "".join((DOCS / "results" / source / "table.md").read_text("utf-8") for source in sources)
    quoted = re.findall(r"[-+]?\d+\.\d+ ± \d+\.\d+(?:\*\*)?(?:, p [<\d. ]+\d)?", own)
    assert len(quoted) > 18
    for number in quoted:
        number = number.replace("**", "")
        value, _, p = number.partition(", ")
        assert (f"{value} ({p})" if p else value) in tables, number


def test_stability_page_shows_what_was_measured():
    """Every row of the table is that of the stored study, and the text's claims hold in it."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "stability.json").read_text("utf-8"))
    page = (DOCS / "stability.md").read_text("utf-8")
    for form, columns in measured.items():
        cells = [f"{sum(c['unstable'].values())} of {c['runs']} | {c['worst']:.2g}" for c in columns.values()]
        assert f"| {form} | {' | '.join(cells)} |" in page
    assert not any(any(c["unstable"].values()) for c in measured["DCL, the default: both"].values())
    assert any(measured["DCL, `floor=None`: the paper's form"]["without noise"]["unstable"].values())


def test_floors_of_the_stability_page_are_what_was_measured():
    """The table is that of the stored study, and the text's claims hold in it."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "floors.json").read_text("utf-8"))
    table = floors.table(measured)
    assert f"<!-- measured: floors -->\n\n{table}\n\n<!-- end -->" in (DOCS / "stability.md").read_text("utf-8")
    assert "**" not in table  # no clear difference
    stable = {
        rule: not any(column["unstable"] for column in columns.values())
        for rule, columns in measured["quadratics"].items()
    }
    for rule in floors.RULES:
        assert stable[rule.name] == (rule == floors.PLAIN or rule.number is not None), rule


def test_rules_for_floors():
    """A small slice of the study: floors of every kind, and a run that learns and is corrected."""
    found = {rule.name: rule.floor(10_000, [0.1, 0.2, 0.3]) for rule in floors.RULES}
    assert found["0.3"] == found["0.3 and `returning`: the default"] == 0.3
    assert found["3/√n"] == pytest.approx(0.03)
    assert found["quantile 0.5"] == pytest.approx(0.2)
    assert found[floors.PLAIN.name] is None
    rule = next(rule for rule in floors.RULES if rule.name == "0.3")
    run = floors.trained("digits, SGD", rule, 0.3, 0.4, 0)
    assert run["result"] < 10  # percent of errors
    assert run["corrected"] > 10
    assert floors.trained("digits, SGD", copy.copy(floors.PLAIN), None, 0.4, 0)["corrected"] == 0


def test_the_advice_for_a_cautious_run_that_diverges_is_what_was_measured():
    measured = json.loads((ROOT / "benchmarks" / "results" / "stability.json").read_text("utf-8"))
    forms = ("Cautious", "Cautious, `max_rescale=2.0`", "Cautious, `rescale=False`")
    free, bounded, without = (
        {name for name, runs in measured[form]["without noise"]["unstable"].items() if runs} for form in forms
    )
    assert (free, bounded, without) == ({"momentum 0.99", "Nesterov 0.9"}, {"Nesterov 0.9"}, set())
    page = " ".join((DOCS / "troubleshooting.md").read_text("utf-8").split())
    (advice,) = re.findall(r"- \*\*`Cautious` with (.*?)(?= - |\n\n)", page)
    assert advice.startswith("Nesterov momentum at a high rate, or with momentum 0.99.")
    assert "Turn it off with `Cautious(optimizer, rescale=False)`" in advice


def test_pictures_are_small():
    pictures = [path for path in (DOCS / "pictures").iterdir() if path.suffix in (".svg", ".png")]
    assert len(pictures) >= 6
    for path in pictures:
        assert path.stat().st_size < 300 * 1024, path.name


def test_pictures_are_what_their_script_draws(tmp_path):
    """The arrows' ends come from `congruency.project`; a change of sign would show as a change of the files."""
    spec = importlib.util.spec_from_file_location("draw", DOCS / "pictures" / "draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    draw.main(tmp_path)
    for path in tmp_path.iterdir():
        assert outlines(path) == outlines(DOCS / "pictures" / path.name), path.name


def outlines(path):
    """How often each kind of shape is drawn: what does not depend on the machine's fonts."""
    return re.findall(r"<(?:path|g) id=\"(patch_\d+|line2d_\d+|text_\d+)", path.read_text("utf-8"))


def test_citation_names_the_software_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == congruency.__version__
    assert citation["title"] == "congruency"
    assert citation["license"] == "MIT"
    assert citation["message"]
    assert citation["authors"]
    paper = citation["references"][0]
    assert paper["type"] == "article"
    assert paper["title"] == "Direction Concentration Learning: Enhancing Congruency in Machine Learning"
    assert [author["family-names"] for author in paper["authors"]] == ["Luo", "Wong", "Kankanhalli", "Zhao"]
    assert paper["journal"] == "IEEE Transactions on Pattern Analysis and Machine Intelligence"


def test_changelog_begins_with_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1] == congruency.__version__


def test_contributing_fits_on_a_page_and_names_real_targets():
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert len(guide.splitlines()) <= 80
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"`make ([a-z-]+)`", guide)
    assert len(targets) >= 3
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_quickest_runs_and_turns_stand_in_the_results():
    """Figures that are not in a table: the quickest run of each setting, and the range of a benchmark's turns."""
    findings = " ".join((DOCS / "results" / "findings.md").read_text("utf-8").split())
    quickest = {}
    for table in ("cost_window", "cost_references"):
        rows = json.loads((DOCS / "results" / table / "results.json").read_text()).values()
        columns = [name for name in next(iter(rows)) if name.isdigit()]
        quickest[table] = [min(value for row in rows for value in row[name]) for name in columns]
    windows, references = quickest["cost_window"], [f"{value:.3f}" for value in quickest["cost_references"]]
    assert f"took {min(windows):.3f} to {max(windows):.3f} ms with all windows" in findings
    assert f"{', '.join(references[:-1])} and {references[-1]} ms with 1, 5, 10, 15 and 20 references" in findings
    readme = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for name in ("training-loop-cuda", "training-loop-small-cuda"):
        rates = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["images_per_second"]
        turns = [ours / plain for ours, plain in zip(rates["our loop"], rates["plain loop, by hand"], strict=True)]
        assert f"({min(turns):.2f} to {max(turns):.2f})" in readme


def test_best_rows_of_the_margins_stand_in_the_results():
    """Figures that are not in a table: the best row of DCL against the best GEM, the tuned settings on more seeds."""
    findings = " ".join((DOCS / "results" / "findings.md").read_text("utf-8").split())
    for stream, text in (("r", "{0} points on rotations (p {1};"), ("p", "{0} on permutations (p {1};")):
        results = read_results(DOCS / "results" / f"mnist_{stream}_margins")
        means = {name: mean_interval(row["accuracy"]).mean for name, row in results.items()}
        ours, theirs = (max((n for n in means if n.startswith(kind)), key=means.get) for kind in ("DCL", "GEM"))
        assert theirs == "GEM"  # margin 0.5
        found = paired_difference(*paired(results, ours, theirs, "accuracy"))
        shown = with_margin(100 * found.mean, 100 * found.margin, 2)
        assert text.format(shown, p_value(found.p)) in findings
        assert ours.startswith({"r": "DCL-30-1 MEM, GEM margin 0.3,", "p": "DCL-10-1 MEM, GEM margin 0.3,"}[stream])
    ours, theirs = paired(results, "DCL-10-1 MEM, GEM margin 0.1, DCL margin 0", "GEM, margin 0.2", "accuracy")
    shown = []
    for seeds in (slice(20), slice(20, 40), slice(40)):
        found = paired_difference(ours[seeds], theirs[seeds])
        shown.append(with_margin(100 * found.mean, 100 * found.margin, 2, sign=True))
    same, other, all_seeds = shown
    text = f"by {same} points on the same 20 seeds, by {other} on the 20 others, and by {all_seeds} on all 40"
    assert f"{text} (p {p_value(found.p)})" in findings
    tuned = read_results(DOCS / "results" / "mnist_p_tuned")["GEM"]["seed"]
    assert results["GEM"]["seed"] == [*tuned, *range(120, 140)]


def test_result_pages_have_charts_and_pictures_follow_the_colour_scheme(site):
    pages, out = site
    results = [path for path in pages if path.parts[0] == "results" and path.name == "table.html"]
    assert len(results) > 10
    for path in results:
        assert 'class="chart"' in pages[path].text, path
        assert 'role="table"' in pages[path].text, path
    for path, page in pages.items():
        for light in re.findall(r'src="([^"]*pictures/[^"]+)#only-light"', page.text):
            stem, _, kind = light.rpartition(".")
            dark = f"{stem}-dark.{kind}"
            assert f'src="{dark}#only-dark"' in page.text, (path, light)
            assert (out / path.parent / dark).is_file()
    assert "#ffffff" not in (out / "pictures" / "cone-dark.svg").read_text("utf-8")


@needs_browser
def test_pages_fit_a_wide_screen_and_a_phone(site, tmp_path):
    pages, out = site
    browser = Browser(tmp_path / "profile")
    try:
        for path, page in pages.items():
            if path.name != "404.html":  # which links from the root of a server
                pictures = "<img" in page.text or 'class="chart"' in page.text
                check_page(browser, out / path, ((420, False), (1400, True)) if pictures else ((420, False),))
        browser.open(out / "index.html", dark=True)
        assert browser.run("document.body.dataset.mdColorScheme") == "slate", "the colours follow the system"
        for name in ("index", "osie/table", "cost/table", "ablation_digits/table"):
            browser.open(out / "results" / f"{name}.html", width=1400)
            drawn = "[...document.querySelectorAll('.chart > svg')].every(e => e.childElementCount > 5)"
            assert browser.run(drawn), name
            wide = (
                "[...document.querySelectorAll('table, pre')].filter(e => e.scrollWidth > e.parentNode.clientWidth + 1)"
            )
            assert browser.run(f"{wide}.length") == 0, name
            lines = "[...document.querySelectorAll('[role=table] td')].map(e => e.getClientRects()[0]?.height ?? 0)"
            assert max([0, *browser.run(lines)]) < 70, name
        browser.open(out / "results" / "index.html", width=1400, height=900)
        assert browser.run("document.querySelector('.claims').getBoundingClientRect().bottom") < 950, "on one screen"
        opened = "[...document.querySelectorAll('details')].filter(e => e.open).map(e => e.innerText)"
        assert browser.run(opened) == []
        browser.run("document.querySelector('.claims a[href=\"#claim-5\"]').click()")
        (evidence,) = browser.run(opened)
        assert "MNIST rotations" in evidence
    finally:
        browser.close()
