"""A sortable page of predictions: image, ground truth, prediction, error and scores of every image."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from congruency.files import replacing, write_together
from congruency.report.numbers import fixed
from congruency.report.page import document
from congruency.saliency.data.images import read_image, read_map
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.viewings import SaliencyData, Viewing
from congruency.saliency.predict import overlay
from congruency.saliency.score_maps import MapScores, map_files
from congruency.saliency.scorer import resized
from congruency.studies.page import provenance

__all__ = ["error_map", "write_gallery"]

_NONE, _MORE, _LESS = np.array([24, 33, 43]), np.array([255, 110, 80]), np.array([80, 160, 255])  # colours of errors
_PANELS = ("image", "people", "prediction", "error")
_WIDTH = 240  # panel width in pixels


def write_gallery(
    out: str | Path,
    maps: str | Path,
    data: SaliencyData,
    scores: MapScores,
    *,
    sigma: float | None = None,
    command: str = "",
) -> Path:
    """Write ``out/index.html`` and its pictures, ``out/pictures``, from a folder of maps and their scores.

    ``scores`` are from :func:`congruency.saliency.score_maps.score_maps` for the same maps and data; ``sigma`` is the
    blur of the density shown, by default the data set's.
    """
    out, files = Path(out), map_files(Path(maps))
    rows = []
    for number, viewing in enumerate(data.viewings):
        shown = _panels(viewing, read_map(files[viewing.key]), sigma)
        cells = []
        for panel, picture in shown.items():
            name = f"pictures/{number:05d}-{panel}.jpg"
            height, width = _write_picture(out / name, picture)
            alt = escape(f"{panel} of {viewing.name}", quote=True)
            cells.append(
                f'<td data-column="{panel}"><img src="{name}" alt="{alt}" width="{width}" height="{height}" '
                'loading="lazy"></td>'
            )
        rows.append(_row(viewing.name, cells, scores.images[viewing.name]))
    metrics = list(next(iter(scores.images.values())))
    title = f"{len(data)} images of {data.name}: where people look, and what was predicted"
    body = _BODY.substitute(
        title=escape(title),
        lead=escape(scores.data),
        command=escape(command),
        header="".join(
            [_sortable("name"), *(f'<th scope="col">{panel}</th>' for panel in _PANELS), *map(_sortable, metrics)]
        ),
        means="".join(
            f'<td data-column="{name}">{fixed(scores.means.get(name, math.nan), 4)}</td>' for name in metrics
        ),
        panels=len(_PANELS),
        rows="\n".join(rows),
        made=escape(provenance(numbers="")),
    )
    (path,) = write_together(out, {"index.html": document(title, _STYLE, body)})
    return path


def error_map(saliency: Tensor, truth: Tensor) -> Tensor:
    """Return ``p - q`` of the maps normalised to sum 1, scaled to [-1, 1]; (H, W), all zero if the truth is.

    Positive where too much was predicted, negative where too little. Negative saliency counts as 0, an all-zero map as
    uniform.
    """
    saliency = saliency.clamp(min=0)
    if not truth.sum() > 0:
        return saliency * 0
    if not saliency.sum() > 0:
        saliency = torch.ones_like(saliency)
    error = saliency / saliency.sum() - truth / truth.sum()
    largest = error.abs().amax()
    return error / largest if largest > 0 else error


def _panels(viewing: Viewing, saliency: Tensor, sigma: float | None) -> dict[str, np.ndarray]:
    frame = viewing.height, viewing.width
    image, saliency = read_image(viewing.image), resized(saliency.nan_to_num(posinf=0.0).unsqueeze(0), frame)[0]
    truth = density(fixation_counts([viewing.points], frame), viewing.sigma if sigma is None else sigma)[0]
    error = error_map(saliency, truth)[..., None].numpy()
    coloured = _NONE + error.clip(min=0) * (_MORE - _NONE) - error.clip(max=0) * (_LESS - _NONE)
    pictures = [image, overlay(image, truth), overlay(image, saliency)]
    shown = [*(each.permute(1, 2, 0).numpy() for each in pictures), coloured.round().astype(np.uint8)]
    return dict(zip(_PANELS, shown, strict=True))


def _write_picture(path: Path, pixels: np.ndarray) -> tuple[int, int]:
    """Write a small JPEG and return its (height, width)."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((_WIDTH, 2 * _WIDTH))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=88)
    with replacing(path) as file:
        file.write(buffer.getvalue())
    return picture.height, picture.width


def _sortable(name: str) -> str:
    return f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>'


def _row(name: str, cells: list[str], scores: Mapping[str, float]) -> str:
    numbers = [
        f'<td data-column="{metric}" data-value="{"" if math.isnan(value) else repr(value)}">{fixed(value, 4)}</td>'
        for metric, value in scores.items()
    ]
    return f'<tr><th scope="row">{escape(name)}</th>{"".join([*cells, *numbers])}</tr>'


_STYLE = """\
body { margin: 0; padding: 1.5rem; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 0.4rem; }
p, footer { color: var(--ink-soft); max-width: 60rem; margin: 0 0 0.8rem; }
code { overflow-wrap: anywhere; }
.table { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.5rem 0.6rem; text-align: right; border-top: 1px solid var(--line); }
th[scope=row] { text-align: left; font-weight: 500; }
thead th { border: 0; text-align: right; font-size: 0.9rem; }
thead th:nth-child(-n+5) { text-align: left; }
tbody.means th, tbody.means td { font-weight: 600; }
button { font: inherit; font-weight: 600; color: inherit; background: none; border: 1px solid var(--line);
  border-radius: 6px; padding: 0.1rem 0.4rem; cursor: pointer; white-space: nowrap; }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
img { display: block; border-radius: 4px; width: clamp(8rem, 12vw, 15rem); height: auto; }
footer { margin-top: 1rem; font-size: 0.9rem; }
@media (max-width: 45rem) {  /* a phone: two pictures beside each other, the scores below them */
  table, thead, tbody { display: block; }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0.4rem; padding: 0.6rem; border-top: 1px solid var(--line); }
  thead tr { display: flex; border: 0; }
  th, td { border: 0; padding: 0; text-align: left; }
  th[scope=row], td[colspan] { grid-column: 1 / -1; overflow-wrap: anywhere; }
  thead th:not([aria-sort]), td[colspan] { display: none; }
  td[data-column]::before { content: attr(data-column) " "; color: var(--ink-soft); }
  img { width: 100%; }
}
"""

_BODY = Template("""<h1>$title</h1>
<p>$lead</p>
<p>People: their fixations, blurred. Error: red where too much was predicted, blue where too little. A heading sorts the
rows, and once more the other way round; images without fixations or without a valid map have no scores and come
last.</p>
<p><code>$command</code></p>
<div class="table">
<table>
<thead><tr>$header</tr></thead>
<tbody class="means"><tr><th scope="row">mean</th><td colspan="$panels"></td>$means</tr></tbody>
<tbody class="images">
$rows
</tbody>
</table>
</div>
<footer>$made</footer>
<script>
const body = document.querySelector('tbody.images');
const headings = [...document.querySelectorAll('thead th')];
const value = (row, place) => place === 0 ? row.cells[0].textContent : row.cells[place].dataset.value;
headings.forEach((heading, place) => heading.querySelector('button')?.addEventListener('click', () => {
  const down = heading.getAttribute('aria-sort') === 'ascending';
  headings.forEach(each => each.hasAttribute('aria-sort') && each.setAttribute('aria-sort', 'none'));
  heading.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const order = (a, b) => {
    const [x, y] = [value(a, place), value(b, place)];
    if (place > 0 && (x === '' || y === '')) return (x === '') - (y === '');
    const found = place === 0 ? x.localeCompare(y, 'en', {numeric: true}) : Number(x) - Number(y);
    return down ? -found : found;
  };
  body.append(...[...body.rows].sort(order));
}));
</script>
""")
