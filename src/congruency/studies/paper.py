"""The number that the paper prints for a run: looked up by the table and row that the run's record names."""

from __future__ import annotations

__all__ = ["Printed", "printed"]

Printed = float | tuple[float, float]
"""A number, or a mean and a standard deviation over the paper's runs."""


def printed(
    table: str | None, row: str | None, data: str | None = None, *, fine_tuned: bool = False
) -> dict[str, Printed]:
    """The paper's numbers for a row, by our name of the metric; empty for what is no row of the paper.

    Rows of DCL are run in both modes, which follow the paper's name of the row: the number is the same beside both.

    Args:
        table: as ``congruency reproduce`` calls it.
        row: of that table.
        data: the data set, for a row of classification that the paper has several numbers for.
        fine_tuned: whether the run began with trained weights, for the same reason.
    """
    from congruency.studies.classification import recipes
    from congruency.studies.saliency.recipes import PAPER, PRINTED

    if table is None or row is None:
        return {}
    if table in PAPER:
        numbers = PAPER[table].get(row.partition(",")[0].removesuffix(" anchor"))
        return {} if numbers is None else dict(zip(PRINTED, numbers, strict=True))
    name = row.partition(",")[0]
    if table not in recipes.tables() or name not in recipes.rows(table):
        return {}
    found: dict[str, Printed] = {}
    for recipe in recipes.find(table, name):
        if recipe.measures == "error" and (recipe.data, recipe.pretrained) == (data, fine_tuned):
            found |= {recipe.columns[column]: number for column, number in recipe.paper.items()}
    return found
