"""The page of claims: up to date, its comparisons real, its verdicts those of the numbers."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from congruency import cli
from congruency.studies.analysis.runs import find_records, group, load
from congruency.studies.plan import Row, Study
from congruency.studies.results import read_results
from replication.catalogue import CATALOGUE, runnable
from replication.claims import CLAIMS, Comparison
from replication.judgement import _other, compared, verdict
from replication.page import index, write_index
from replication.rows import definition
from replication.states import expected_rows, held

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
COMPARISONS = [one for claim in CLAIMS for variant in claim.variants for one in variant.comparisons]


def test_the_page_in_the_checkout_is_made_of_the_results_in_it():
    made, held = index(RESULTS), (RESULTS / "index.md").read_text(encoding="utf-8")
    assert made == held, "docs/results/index.md is out of date; write it again with: make replication"


def test_every_link_leads_somewhere():
    text = (RESULTS / "index.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (RESULTS / target).is_file(), target
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert f'<a id="{anchor}"></a>' in text


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda one: f"{one.folder}-{one.metric}"[:40])
def test_every_comparison_is_of_rows_that_exist(comparison):
    study = definition(comparison.folder)
    found = study.find(**comparison.rows)
    assert found
    for row in found:
        other = _other(row, comparison, study)
        assert other is not None
        assert (other.name, comparison.against_metric or comparison.metric) != (row.name, comparison.metric)


FOLDERS = sorted({one.folder for one in COMPARISONS if (RESULTS / one.folder).is_dir()})


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rows_of_a_stored_result_are_those_of_its_definition(folder):
    """A row that its definition does not have would be judged by nobody."""
    known = {row.name for row in definition(folder).rows}
    bounds = {"uniform", "centre Gaussian", "mean training map", "human ceiling"} if folder == "osie" else set()
    assert set(read_results(RESULTS / folder)) - bounds <= known


def test_rows_have_different_names_and_settings():
    folders = {one.folder for one in COMPARISONS}
    for study in map(definition, folders):
        names = [row.name for row in study.rows]
        assert len(set(names)) == len(names)
        settings = [tuple(sorted(row.settings.items(), key=str)) for row in study.rows]
        assert len(set(settings)) == len(settings), study.name
        assert {row.against for row in study.rows if row.against} <= set(names)


def test_claims_name_entries_of_the_catalogue():
    known = {entry.name for entry in CATALOGUE}
    for claim in CLAIMS:
        assert claim.entries
        assert set(claim.entries) <= known
        assert bool(claim.variants) != (claim.evidence is not None), "something must be able to decide it"


def write(root, folder, content):
    (root / folder).mkdir(parents=True)
    (root / folder / "results.json").write_text(json.dumps(content))


def section(root, heading):
    """What the page says about a claim, by the beginning of its text."""
    return index(root).partition("## The claims")[2].partition(f". {heading}")[2].partition("</details>")[0]


def toy(*names, against="GEM"):
    rows = [Row(name=name, jobs=(), against=against, settings={"network": name}) for name in names]
    return Study(name="x", title="", lead="", columns=(), rows=(Row(name="GEM", jobs=()), *rows))


UP, DOWN, FLAT = [1.0, 1.1, 0.9, 1.05], [-1.0, -1.1, -0.9, -1.05], [1.0, -1.1, 0.9, -1.0]
SMALL, SMALLER = [0.3, 0.31, 0.3, 0.29], [-0.2, -0.21, 0.0, -0.3]  # the first is clear, and within 0.5
NEAR = [0.5, 0.6, 0.55, 0.45]  # clear, its mean beyond 0.5, its interval not wholly
WEAK = [1.0, 2.0, 0.5, 1.6]  # p is 0.031 alone, and 0.061 as the better of two


@pytest.mark.parametrize(
    ("values", "expected", "word"),
    [
        ([UP, UP], "higher", "for"),
        ([UP, UP], "lower", "against"),
        ([DOWN, FLAT], "lower", "for (1 of 2 clear)"),
        ([DOWN, UP, FLAT], "lower", "mixed (1 for, 1 against, of 3)"),
        ([FLAT], "higher", "undecided"),
        ([WEAK], "higher", "for"),
        ([WEAK, FLAT], "higher", "undecided"),
        ([FLAT], "same", "undecided"),
        ([FLAT, UP], "same", "against (1 of 2 clear)"),
        ([FLAT, DOWN], "same", "against (1 of 2 clear)"),
        ([SMALL, SMALLER], "same", "for"),
        ([SMALL, FLAT], "same", "undecided"),
        ([SMALL, NEAR], "same", "undecided"),
        ([SMALL, [-0.5, -0.3, -0.45, -0.2]], "same", "undecided"),
        ([[0.1]], "same", "undecided"),
        ([[2.0]], "higher", "undecided"),
        ([], "higher", "not yet measured"),
    ],
)
def test_verdicts(values, expected, word):
    names = [f"DCL-{i}" for i in range(len(values))]
    held = {name: {"m": list(each)} for name, each in zip(names, values, strict=True)}
    held["GEM"] = {"m": [0.0] * max([1, *(len(each) for each in values)])}
    little = 0.5 if expected == "same" else None
    found = [
        one
        for name in names
        for one in compared(
            Comparison(folder="x", rows={"network": name}, metric="m", expected=expected, little=little),
            held, toy(*names),
        )
    ]  # fmt: skip
    assert [one.name for one in found] == names
    assert len(found) == len(values)
    assert verdict(found) == word


def test_a_line_says_what_counts_as_little_and_how_many_seeds(tmp_path):
    rows = {"GEM": [0.5] * 3, "MLP DCL-30-1 MEM, anchor, margin 0.5": [0.501, 0.502, 0.503]}
    rows["MLP DCL-40-1 MEM, anchor, margin 0.5"] = [0.501, 0.503]
    write(tmp_path, "mnist_r", {row: {"forward_transfer": values} for row, values in rows.items()})
    reported = section(tmp_path, "DCL has little influence on forward transfer.")
    assert "forward transfer, 2 to 3 seeds, little is up to 0.01: DCL-30-1 +0.0020 ± 0.0025" in reported
    assert "**undecided**" in reported, "with two seeds the interval is wide"
    with pytest.raises(ValueError, match="little must be given for 'same'"):
        Comparison(folder="x", rows={}, metric="m", expected="same")


@pytest.mark.parametrize(("share", "count"), [([0.0, 0.0, 0.0], 1), ([0.0, 0.1, 0.0], 2)])
def test_a_row_that_never_corrects_is_no_comparison(tmp_path, share, count):
    values = {
        "DCL-5-5": [13.0, 13.2, 13.1],
        "DCL-10-5": [14.0, 14.3, 14.1],
        "DCL-5-1": [12.0] * 3,
        "DCL-10-1": [12.0] * 3,
    }
    rows = {f"{name}, concentrate, margin 0, head": {"test error": each} for name, each in values.items()}
    for name, metrics in rows.items():
        metrics["corrected_share"] = share if name.startswith("DCL-5-5") else [0.4] * 3
    write(tmp_path, "ablation_digits", rows)
    reported = section(tmp_path, "In classification more reference points than one raise the test error.")
    assert ("DCL-5-5 +" in reported) == (count == 2)
    assert "DCL-10-5 +2.13" in reported
    assert f"{count} comparisons, paired by seed" in index(tmp_path)


def test_plain_training_never_corrects_and_is_compared_all_the_same(tmp_path):
    """The order of the samples is judged for it too."""
    rows = {f"baseline (sample order {order})": {"congruency": values, "corrected_share": [0.0] * 3}
            for order, values in (("fixed", [0.1, 0.12, 0.11]), ("independent", [0.101, 0.122, 0.109]))}  # fmt: skip
    write(tmp_path, "order_digits", rows)
    reported = section(tmp_path, "The order of the samples, fixed or independent, matters little")
    assert "- plain training: **for**" in reported
    assert "baseline -0.0007 ± 0.0038" in reported
    assert "- order_digits, congruency" in reported, "no link to a table that is not there"
    (tmp_path / "order_digits" / "table.md").touch()
    reported = section(tmp_path, "The order of the samples, fixed or independent, matters little")
    assert "- [order_digits](order_digits/table.md), congruency" in reported


@pytest.mark.parametrize("shift", [0.001, 0.3])
def test_runs_in_both_orders_decide_the_claim_on_orders(tmp_path, shift):
    """Real runs, named and grouped as `congruency report` does it; their congruency is set by hand."""
    runner = CliRunner()
    for order, seed in itertools.product(("fixed", "independent"), range(3)):
        words = [
            "train",
            "--dataset",
            "digits",
            "--model",
            "mlp",
            "--per-class",
            "2",
            "--epochs",
            "1",
            "--order",
            order,
        ]
        words += [
            "--method",
            "dcl",
            "--floor",
            "none",
            "--scope",
            "head",
            "--seed",
            str(seed),
            "--device",
            "cpu",
            "--no-progress",
        ]
        result = runner.invoke(cli.build(), [*words, "--out", str(tmp_path / "runs" / f"{order}-{seed}")])
        assert result.exit_code == 0, result.output
    groups = group(load(find_records([tmp_path / "runs"])).runs)
    measured = {"fixed": [0.2, 0.21, 0.22], "independent": [0.2 + shift, 0.2101 + shift, 0.2199 + shift]}
    rows = {one.name: {"seed": one.seeds, "congruency": measured[dict(one.variant)["sample_order"]]} for one in groups}
    write(tmp_path / "results", "order_digits", rows)
    reported = section(tmp_path / "results", "The order of the samples, fixed or independent, matters little")
    word = "for" if shift < 0.02 else "against"
    assert f"- equations (concentrate, margin 0): **{word}**" in reported


def test_costs_are_compared_between_columns(tmp_path):
    metrics = {"10": [1.0, 1.1, 1.05], "20": [1.001, 1.102, 1.05], "50": [1.2, 1.31, 1.26]}
    write(tmp_path, "cost_window", {"DCL, concentrate, margin 0": metrics})
    reported = section(tmp_path, "The window does not change what a training image costs.")
    assert "window 20 in ms against 10, 3 seeds, little is up to 0.021 ms: DCL +0.0010 ± 0.0025" in reported
    assert "**against (1 of 2 clear)**" in reported


def test_dcl_is_compared_with_gem_too(tmp_path):
    rows = {"baseline": [0.1, 0.11, 0.12], "GEM, margin 0.5, head": [0.3, 0.32, 0.31],
            "DCL-5-1, anchor, margin 0.5, head": [0.2, 0.215, 0.22]}  # fmt: skip
    write(tmp_path, "cifar10_grid", {row: {"congruency": values} for row, values in rows.items()})
    reported = section(tmp_path, "DCL raises the congruency of training")
    assert "published code (anchor, margin 0.5): **mixed (1 for, 1 against, of 2)**" in reported
    assert "congruency against GEM, 3 seeds: DCL-5-1, head -0.0983" in reported


def test_the_summary_keeps_what_limits_a_claim():
    lines = [line for line in index(RESULTS).splitlines() if line.startswith("| [")]
    assert len(lines) == len(CLAIMS)
    for line, claim in zip(lines, CLAIMS, strict=True):
        assert (r"\*" in line) == bool(claim.limits)
    (line,) = (line for line in lines if "DCL lowers the test error on CIFAR-10" in line)
    assert line.endswith(r"with every network\* | **against** | **mixed** |")
    reported = section(RESULTS, "DCL lowers the test error on CIFAR-10")
    assert "in short runs" in reported
    assert "[cifar10_grid](cifar10_grid/table.md)" in reported, "and says by which results it is judged"


def test_every_claim_is_one_short_line_and_its_evidence_is_folded():
    text = index(RESULTS)
    lines = [line for line in text.splitlines() if line.startswith("| [")]
    assert max(len(re.sub(r"\]\(#claim-\d+\)", "", line)) for line in lines) < 160
    assert text.count("<details") == text.count("</details>") == len(CLAIMS) + 2
    for number in range(1, len(CLAIMS) + 1):
        before = text.partition(f'<a id="claim-{number}"></a>')[0]
        assert before.count("<details") - before.count("</details>") == 1, "a link to it unfolds it"


def test_every_table_of_the_paper_belongs_to_a_claim():
    held = {name for claim in CLAIMS for name in claim.entries}
    assert {entry.name for entry in CATALOGUE if entry.place.startswith("Table")} <= held


def test_the_other_row_is_found_by_settings_that_both_share():
    rows = [
        Row(name=f"{network} {method}", jobs=(), settings={"network": network, "method": method})
        for network in "AB" for method in ("dcl", "gem")
    ]  # fmt: skip
    study = Study(name="x", title="", lead="", columns=(), rows=tuple(rows))
    values = {"A dcl": [1.0, 2.0], "B dcl": [1.0, 2.0], "A gem": [0.0, 0.0], "B gem": [5.0, 5.0]}
    held = {name: {"m": each} for name, each in values.items()}
    settings = {"folder": "x", "rows": {"method": "dcl"}, "metric": "m", "expected": "higher"}
    one = Comparison(**settings, against={"method": "gem"}, same=("network",))
    found = compared(one, held, study)
    assert [(each.name, each.difference.mean) for each in found] == [("A, DCL", 1.5), ("B, DCL", -3.5)]
    assert compared(one, None, study) == []
    with pytest.raises(ValueError, match="several rows to be compared with"):
        compared(Comparison(**settings, against={"method": "gem"}), held, study)


def test_a_page_of_new_results(tmp_path):
    """Made by the command, from a folder with one result; everything else is to be measured."""
    accuracy = {"GEM": [0.80, 0.81, 0.82], "MLP DCL-30-1 MEM, anchor, margin 0.5": [0.90, 0.92, 0.91]}
    (tmp_path / "mnist_r").mkdir()
    content = {row: {"accuracy": values} for row, values in accuracy.items()}
    (tmp_path / "mnist_r" / "results.json").write_text(json.dumps(content))
    (tmp_path / "findings.md").write_text("## Written by hand\n\nA word.\n")
    words = [sys.executable, "-m", "replication", "--results", str(tmp_path)]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "from 83.35 to 84.08 % | **for** | not yet measured |" in text
    assert "3 seeds: DCL-30-1 +10.00 ± 2.48 (p 0.003)" in text
    assert text.count("**Not yet measured.**") == len(CLAIMS) - 1
    assert "published code without its margin" not in text
    assert "## Written by hand\n\nA word." in text
    assert f"incomplete, 2 of {len(expected_rows(runnable()['mnist_r']))} rows, 3 seeds of 20" in text
    assert write_index(tmp_path).read_text(encoding="utf-8") == text


def test_the_loss_by_task_bears_on_the_claim_of_figure_14(tmp_path):
    """Where a continual table has it; a table from before losses were kept says nothing."""
    losses = {"ResNet GEM": [1.0, 1.1, 1.2], "ResNet DCL-4-1 MEM, anchor, margin 0.5": [0.9, 1.02, 1.09]}
    (claim,) = (claim for claim in CLAIMS if claim.where.startswith("Figure 14"))
    heading = f". {claim.text}"
    for metric, word in (("validation_loss", "**for**"), ("accuracy", "**Not yet measured.**")):
        (tmp_path / "icifar100").mkdir(exist_ok=True)
        content = {row: {metric: values} for row, values in losses.items()}
        (tmp_path / "icifar100" / "results.json").write_text(json.dumps(content))
        section = index(tmp_path).partition("## The claims")[2].partition(heading)[2].partition("</details>")[0]
        assert word in section
        reported = "validation loss by task, 3 seeds: DCL-4-1 -0.0967 ± 0.0379 (p 0.008)"
        assert (reported in section) == (metric == "validation_loss"), section


def test_a_folder_that_is_missing_is_refused(tmp_path):
    words = [sys.executable, "-m", "replication", "--results", str(tmp_path / "nowhere")]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "there is no folder" in result.stderr


def test_every_entry_that_claims_name_is_held_somewhere():
    known = {entry.name: entry for entry in CATALOGUE}
    for claim in CLAIMS:
        folders = {one.folder for variant in claim.variants for one in variant.comparisons}
        assert not folders or folders & {
            name for entry in claim.entries for name in (*held(known[entry]).results, *held(known[entry]).smaller)
        }
