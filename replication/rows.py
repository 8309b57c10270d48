"""The rows of every result with their settings, by which claims find rows, never by their names.

``method`` is ``"baseline"``, ``"gem"``, ``"dcl"``, ``"dcl_memory"`` or another learner's kind; ``mode``, ``window``,
``references``, ``margin`` and ``scope`` are the correction's; ``network`` names the network if a result has several;
``sample_order``, ``data``, ``model`` and ``optimizer`` are settings of runs in a report; ``pairs`` is the kind of pairs
of samples. A setting in which the jobs of a row differ is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from congruency.saliency.task import Recipe
from congruency.studies.analysis.pairs import BETWEEN, SIMILAR, WITHIN
from congruency.studies.analysis.runs import row_name
from congruency.studies.classification.cells import Axes, cell_name, cells
from congruency.studies.classification.jobs import correction_settings
from congruency.studies.classification.tuned import TUNED
from congruency.studies.continual.parts import part_study
from congruency.studies.continual.tables import TABLES, StreamSettings, Table, continual_study
from congruency.studies.image_tables import TITLES as IMAGE_TABLES
from congruency.studies.image_tables import named_study
from congruency.studies.plan import Row, Study
from congruency.studies.saliency.recipes import NETWORK_METHODS, osie_recipes, paper_recipes
from congruency.studies.saliency.study import saliency_study
from congruency.studies.tuned import Methods
from congruency.training import choose_families, choose_methods
from congruency.training.config import LATER_FIELDS, Correction
from congruency.training.methods import BASELINE
from congruency.training.wording import method_name
from replication.catalogue import CLEAN_TENTH

LONGER, SCREENED = "_30", "_screened"
"""Suffixes of the folder of a tuned table for runs of 30 epochs, and for rows that are families."""

Rows = Iterable[Row[Any]]
Definition = Study[Any]

_NETWORKS = {
    "resnext29_16x64": "ResNeXt-29", "densenet100_12": "DenseNet-100-12", "densenet169": "DenseNet-169-32",
    "efficientnet_b1": "EfficientNet-B1", "resnet101": "ResNet-101", "resnet50": "ResNet-50",
    "torchvision/resnet50": "ResNet-50 from scratch", "tf_efficientnet_lite0": "EfficientNet-Lite0 fine-tuned",
}  # fmt: skip

_ABLATIONS = {
    "ablation_digits": Axes(modes=("concentrate", "anchor")),
    "ablation_windows": Axes(
        windows=(5, 10, 20, 50, 70, 100, None), references=(1,), modes=("concentrate", "anchor")
    ),
    "ablation_references": Axes(windows=(50,), references=(1, 5, 10, 15, 20), modes=("concentrate", "anchor")),
}  # fmt: skip

_BASELINE, _GEM, _EQUATIONS = Correction(), Correction(name="gem"), Correction(name="dcl")
_CODE = Correction(name="dcl", mode="anchor", margin=0.5, offset=1)
_ORDERS = [{"sample_order": order} for order in ("fixed", "independent")]
_SALICON = [{"model": m, "optimizer": o} for m, o in (("salicon", "rmsprop"), ("salicon", "adam"), ("dinet", "adam"))]
_REPORTS: dict[str, tuple[Sequence[Mapping[str, str]], int | None]] = {
    "order_digits": (_ORDERS, None),
    "saliency_congruency": (_ORDERS, None),
    "congruency_cifar": ([{"data": "cifar10"}, {"data": "cifar100"}], None),
    "congruency_tiny": ([{}], 60),
    "error_curves": ([{}], 60),
    "validation_loss_tiny": ([{}], 60),
    "validation_loss_salicon": (_SALICON, None),
}
"""For results of ``congruency report``: the settings in which runs differ besides the method, and DCL's window."""

_STREAMS: dict[str, Table] = {
    **{name: name for name in TABLES}, "icifar100_clean": "icifar100", "icifar100_noisy": "icifar100",
}  # fmt: skip


@cache
def definition(folder: str) -> Definition | None:
    """Return the rows of a complete result; None for one without rows, such as a single analysis."""
    rows = tuple(_rows(folder))
    return Study(name=folder, title="", lead="", rows=rows, columns=()) if rows else None


def _rows(folder: str) -> Rows:
    if folder in _STREAMS:
        return _continual(continual_study(StreamSettings(table=_STREAMS[folder])))
    if folder == "icifar100_clean_tenth":
        return _continual(part_study(StreamSettings(table="icifar100"), CLEAN_TENTH, "all"))
    table = TUNED.get(folder.removesuffix(SCREENED).removesuffix(LONGER))
    if table is not None:
        screened = folder.endswith(SCREENED)
        return _tuned(choose_families(table.families) if screened else choose_methods(table.rows))
    if folder in ("language_tiny", "language_10m", "language_100m"):
        return _tuned(choose_methods())
    if folder in _ABLATIONS:
        return _ablation(_ABLATIONS[folder])
    if folder in _REPORTS:
        return _reported(*_REPORTS[folder])
    if folder in ("class_pairs", "class_pairs_cifar10"):
        kinds = (WITHIN, SIMILAR, BETWEEN) if folder == "class_pairs" else (WITHIN, BETWEEN)
        return [Row(name=kind, jobs=(), settings={"pairs": kind}) for kind in kinds]
    if folder == "osie":
        return _saliency(
            osie_recipes(
                models=["dinet4"], optimizers=["adam", "rmsprop"], lite="lite.pth", scratch=True, epochs=6,
                scratch_epochs=6, methods=["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"], delay=0,
            )
        )  # fmt: skip
    if folder == "osie_networks":
        return _saliency(
            osie_recipes(
                models=["dinet", "salicon"], optimizers=["adam"], methods=NETWORK_METHODS, lite="lite.pth",
                scratch=False, epochs=10, scratch_epochs=10,
            )
        )  # fmt: skip
    if folder == "salicon":
        return _saliency(paper_recipes("salicon"))
    if folder == "osie_mit1003":
        return _saliency(paper_recipes("osie"))
    return _classification(named_study(folder)) if folder in IMAGE_TABLES else ()


def _tuned(methods: Methods) -> Rows:
    """Yield the rows of a tuned table; only GEM and the paper's forms of DCL are compared with the baseline.

    The settings of a family are those that its variants share.
    """
    for name, method in methods.items():
        variants = [method] if isinstance(method, Correction) else list(method.values())
        paper = all(
            one.name == "gem" or (one.name == "dcl" and not set(one.settings()) & set(LATER_FIELDS)) for one in variants
        )
        first, *others = map(correction_settings, variants)
        common = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
        yield Row(name=name, jobs=(), against="baseline" if paper else None, settings=common)


def _continual(study: Study[Any]) -> Rows:
    """Yield the rows of a continual table; ``margin`` is that of the references for DCL, else of the memory."""
    names = {row.name for row in study.rows}
    for row in study.rows:
        kind, settings = row.settings["kind"], dict(row.settings)
        settings["margin"] = settings["reference_margin" if kind == "dcl" else "memory_margin"]
        against = row.against if row.against in names else None
        yield replace(row, against=against, settings={**settings, "method": kind})


def _classification(study: Study[Any]) -> Rows:
    for row in (row for row in study.rows if row.jobs):  # rows without jobs are quoted by the paper
        yield replace(row, settings={**row.settings, "network": _NETWORKS.get(row.settings.get("model", ""))})


def _ablation(axes: Axes) -> Rows:
    yield Row(name=BASELINE, jobs=(), settings=correction_settings(_BASELINE))
    for cell in cells(axes):
        yield Row(name=cell_name(cell), jobs=(), against=BASELINE, settings=correction_settings(cell))


def _saliency(recipes: Sequence[Recipe]) -> Rows:
    for row in saliency_study("osie_study", recipes).rows:
        yield replace(row, settings={**row.settings, "network": row.against or row.name})


def _reported(differences: Sequence[Mapping[str, str]], window: int | None) -> Rows:
    methods = (_BASELINE, _GEM, *(replace(method, window=window) for method in (_EQUATIONS, _CODE)))
    for different in differences:
        plain = row_name(method_name(asdict(_BASELINE)), different)
        for method in methods:
            name = row_name(method_name(asdict(method)), different)
            against = plain if name != plain else None
            yield Row(name=name, jobs=(), against=against, settings={**correction_settings(method), **different})


def label(row: Row[Any], names: Sequence[str]) -> str:
    """Name a row by some of its settings, with the paper's ``DCL-window-references``."""
    settings = row.settings
    parts = []
    for name in (name for name in names if settings.get(name) is not None):
        value = str(settings[name])
        if name == "method":
            parts.append(_method_label(value, settings))
        elif name in ("network", "scope", "pairs"):
            parts.append(value)
        else:
            parts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(parts)


def _method_label(method: str, settings: Mapping[str, Any]) -> str:
    if method not in ("dcl", "dcl_memory"):
        return {"gem": "GEM"}.get(method, method)
    if "window" not in settings or "references" not in settings:
        return "DCL"
    window = settings["window"]
    return f"DCL-{'inf' if window is None else window}-{settings['references']}"
