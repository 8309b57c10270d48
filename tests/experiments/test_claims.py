"""The page of claims: up to date, its comparisons real, its verdicts those of the numbers."""

import json
import re
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

from congruency import cli
from congruency.experiments.analysis.pairs_over_networks import BETWEEN, WITHIN
from congruency.experiments.catalogue import CATALOGUE, runnable
from congruency.experiments.claims import CLAIMS, Comparison
from congruency.experiments.claims_page import compared, index, verdict, write_index
from congruency.experiments.listing import expected_rows
from congruency.experiments.results import Results, compare, read_results
from congruency.experiments.saliency.recipes import METHODS
from congruency.experiments.saliency.study import osie_recipes

RESULTS = Path(__file__).parents[2] / "docs" / "results"
COMPARISONS = list(dict.fromkeys(one for claim in CLAIMS for variant in claim.variants for one in variant.comparisons))


def test_the_page_in_the_checkout_is_made_of_the_results_in_it():
    made, held = index(RESULTS), (RESULTS / "index.md").read_text(encoding="utf-8")
    assert made == held, "docs/results/index.md is out of date; write it anew with: congruency reproduce --index"


def test_every_link_leads_somewhere():
    text = (RESULTS / "index.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (RESULTS / target).is_file(), target
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert f'<a id="{anchor}"></a>' in text


def rows_of(folder):
    """The rows that a folder of results has when it is complete."""
    if folder in ("osie", "osie_windows"):
        methods = ["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"] if folder == "osie" else list(METHODS)
        assert set(methods) <= set(METHODS)
        options = {"models": ["dinet"], "optimizers": ["adam", "rmsprop"], "methods": methods}
        made = osie_recipes(**options, lite="lite.pth", scratch=True, epochs=10, scratch_epochs=20)
        return [recipe.name for recipe in made]
    if folder == "ablation_digits":
        kinds = ("concentrate, margin 0", "anchor, margin 0.5")
        cells = [(window, count, kind) for window in (5, 20, 50, "inf") for count in (1, 5) for kind in kinds]
        return ["baseline", *(f"DCL-{window}-{count}, {kind}, head" for window, count, kind in cells)]
    if folder == "class_pairs_cifar10":
        return [WITHIN, BETWEEN]
    (entry,) = (entry for entry in CATALOGUE if entry.runs and folder in entry.results)
    return expected_rows(entry)


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda one: f"{one.folder}-{one.metric}"[:40])
def test_every_comparison_is_of_rows_that_there_are(comparison):
    rows = rows_of(comparison.folder)
    found = [match for row in rows if (match := re.fullmatch(comparison.rows, row))]
    assert found
    for match in found:
        assert match.expand(comparison.against) in rows
        assert match.expand(comparison.against) != match.string


def test_claims_name_entries_of_the_catalogue():
    known = {entry.name for entry in CATALOGUE}
    for claim in CLAIMS:
        assert claim.entries
        assert set(claim.entries) <= known
        assert claim.variants == () or claim.evidence is None


def results(**rows):
    return Results("x", {name.replace("_", " "): metrics for name, metrics in rows.items()})


def test_differences_are_paired_by_seed():
    one = results(a={"seed": [2, 0, 1], "m": [5.0, 1.0, 2.0]}, b={"seed": [0, 1, 3], "m": [0.5, 0.0, 9.0]})
    difference = compare(one, "a", "b", "m")
    assert (difference.mean, difference.count) == (1.25, 2)
    plain = results(a={"m": [1.0, 2.0, 4.0]}, b={"m": [0.0, 0.0, 0.0]})
    assert compare(plain, "a", "b", "m").p == pytest.approx(stats.ttest_1samp([1, 2, 4], 0).pvalue)
    assert compare(plain, "a", "c", "m") is None
    assert compare(plain, "a", "b", "n") is None


UP, DOWN, FLAT = [1.0, 1.1, 0.9, 1.05], [-1.0, -1.1, -0.9, -1.05], [1.0, -1.1, 0.9, -1.0]
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
        ([FLAT], "same", "undecided (no clear change, as claimed)"),
        ([FLAT, UP], "same", "against (1 of 2 clear)"),
        ([[2.0]], "higher", "undecided"),
        ([], "higher", "not yet measured"),
    ],
)
def test_verdicts(values, expected, word):
    rows = {f"DCL-{i}": {"m": list(each)} for i, each in enumerate(values)}
    held = Results("x", {**rows, "GEM": {"m": [0.0] * 4}})
    held.rows["GEM"]["m"][:] = [0.0] * max([1, *(len(each) for each in values)])
    found = compared(Comparison("x", r"(DCL-\d)", "GEM", "m", expected), held)
    assert len(found) == len(values)
    assert verdict(found) == word


def test_against_may_name_the_network():
    held = results(A_base={"m": [0.0, 0.0]}, B_base={"m": [5.0, 5.0]}, A_DCL={"m": [1.0, 2.0]}, B_DCL={"m": [1.0, 2.0]})
    found = compared(Comparison("x", r"(?P<n>\w) (DCL)", r"\g<n> base", "m", "higher"), held)
    assert [(one.name, one.difference.mean) for one in found] == [("A, DCL", 1.5), ("B, DCL", -3.5)]
    assert compared(Comparison("x", "(DCL)", "base", "m", "higher"), None) == []


def test_a_page_of_new_results(tmp_path):
    """Made by the command, from a folder with one result; everything else is to be measured."""
    accuracy = {"GEM": [0.80, 0.81, 0.82], "MLP DCL-30-1 MEM, anchor, margin 0.5": [0.90, 0.92, 0.91]}
    (tmp_path / "mnist_r").mkdir()
    content = {row: {"accuracy": values} for row, values in accuracy.items()}
    (tmp_path / "mnist_r" / "results.json").write_text(json.dumps(content))
    (tmp_path / "findings.md").write_text("## Written by hand\n\nA word.\n")
    result = CliRunner().invoke(cli.build(), ["reproduce", "--index", "--results", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "published code: **for**" in text
    assert "3 seeds: DCL-30-1 +10.00 ± 2.48 (p 0.003)" in text
    assert text.count("**Not yet measured.**") == len(CLAIMS) - 1
    assert "published code without its margin" not in text
    assert "## Written by hand\n\nA word." in text
    assert f"incomplete, 2 of {len(expected_rows(runnable()['mnist_r']))} rows, 3 seeds" in text
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
        section = index(tmp_path).partition("## The claims")[2].partition(heading)[2].partition("<a id=")[0]
        assert word in section
        told = "validation loss by task, 3 seeds: DCL-4-1 -0.0967 ± 0.0379 (p 0.008)"
        assert (told in section) == (metric == "validation_loss"), section


def test_results_of_other_forms_and_missing_values(tmp_path):
    assert read_results(tmp_path, "x") is None
    (tmp_path / "x").mkdir()
    for content, rows in (
        ({"a": {"m": [1, None]}}, 1), ({"a": {"m": 1}}, 0), ([1], 0), ({"a": {"m": ["x"]}}, 0), ({"a": {}}, 1),
    ):  # fmt: skip
        (tmp_path / "x" / "results.json").write_text(json.dumps(content))
        assert len(read_results(tmp_path, "x").rows) == rows
