"""The numbers that the paper prints for a run: looked up by the table and row that the run's record names."""

from __future__ import annotations

from congruency.studies.plan import PaperNumber

__all__ = ["printed"]


def printed(
    table: str | None, row: str | None, data: str | None = None, *, fine_tuned: bool = False
) -> dict[str, PaperNumber]:
    """Return the paper's numbers for a row, by our name of the metric; empty for what is no row of the paper.

    Rows of DCL are run in both modes, with the same number of the paper beside both.

    Args:
        table: as ``congruency reproduce`` names it.
        data: the data set, for a row of classification that the paper has several numbers for.
        fine_tuned: whether the run started from pretrained weights, for the same reason.
    """
    from congruency.studies.classification.tables import TITLES, paper_study
    from congruency.studies.saliency.recipes import PAPER, paper_numbers, paper_recipes

    if table in PAPER:
        return next((dict(paper_numbers(table, one)) for one in paper_recipes(table) if one.paper_row == row), {})  # type: ignore[arg-type]
    if table not in TITLES:
        return {}
    return {
        job.columns[column]: each.paper[column]
        for each in paper_study(table).rows
        if each.name == row
        for job in each.jobs
        if (job.data.name, bool(getattr(job.setup, "pretrained", None))) == (data, fine_tuned)
        for column in job.columns
        if job.columns[column] in ("error", "top5_error")
    }
