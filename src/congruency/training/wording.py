"""Describe a correction in words, from its settings in a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from congruency.training.config import LATER_FIELDS, Correction

# The settings that a method uses, with the method's defaults.
_BY_METHOD: dict[str, dict[str, Any]] = {
    "baseline": {},
    "gem": {
        "memory": 1, "margin": Correction(name="gem").effective_margin,
        "trigger": Correction(name="gem").effective_trigger, "scope": "head",
    },
    "dcl": {
        "window": None, "references": 1, "mode": "concentrate", "margin": Correction(name="dcl").effective_margin,
        "offset": 0, "trigger": Correction(name="dcl").effective_trigger, "accumulate": "weights",
        "scope": "head",
    },
    "cautious": {"scope": "all"},
    "l2sp": {"scope": "all"},
}  # fmt: skip
_OF_METHODS = {setting.name: setting.default for setting in fields(Correction)}

# Settings in words, by name and value or else by name.
_WORDS = {
    "scope all": "whole network", "scope head": "last layer", "returning False": "returning off",
    "cautious True": "cautious", "rescale False": "not rescaled", "mask_decay True": "masked decay",
    "trigger": "{value}", "accumulate": "accumulating {value}", "correct": "corrects the {value}",
    "blocks": "by {value}", "max_rescale": "rescaled at most {value}",
}  # fmt: skip


def correction(method: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a method uses, with defaults filled in.

    Settings unknown to this release are kept, since they may have affected the run.
    """
    settings = _BY_METHOD.get(str(method["name"]))
    if settings is None:
        return {key: value for key, value in method.items() if key != "name"}
    own = {key: method[key] if method.get(key) is not None else usual for key, usual in settings.items()}
    if "margin" in own:
        own["margin"] = f"{own['margin']:g}"  # 0 and 0.0 are the same margin
    own |= later_settings(method)
    return own | {key: value for key, value in method.items() if key not in _OF_METHODS}


def later_settings(method: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of :data:`LATER_FIELDS` that the method uses and that differ from their defaults."""
    name = str(method["name"])
    of_dcl = ("floor", "correct", "blocks", *(["returning"] if method.get("floor") is not None else []))
    of_cautious = ("rescale", "mask_decay", "max_rescale")
    matter = {
        *(of_dcl if name == "dcl" else ()),
        *(of_cautious if name == "cautious" or method.get("cautious") else ()),
        *(("cautious",) if name != "cautious" else ()),
        *(("strength", "head_strength") if name == "l2sp" else ()),
    }
    return {
        key: method[key]
        for key in LATER_FIELDS
        if key in matter and method.get(key, _OF_METHODS[key]) != _OF_METHODS[key]
    }


def in_words(settings: Mapping[str, Any]) -> list[str]:
    """Return each setting in words."""
    return [
        _WORDS.get(f"{key} {value}", _WORDS.get(key, "{key} {value}")).format(key=key.replace("_", " "), value=value)
        for key, value in flat(settings).items()
    ]


def method_name(method: Mapping[str, Any]) -> str:
    """Return a method in words: ``baseline``, ``GEM``, or the paper's ``DCL-window-references`` with its mode.

    Settings that differ from the defaults are listed too, so that different corrections have different names.
    """
    name, own = str(method["name"]), correction(method)
    usual = correction({"name": name})
    text = {"baseline": "baseline", "cautious": "Cautious", "l2sp": "L2-SP"}.get(name, name.upper())
    if name == "dcl":
        window, references, mode = (own.pop(key) for key in ("window", "references", "mode"))
        text += f"-{'∞' if window is None else window}-{references} {mode}"
    return ", ".join([text, *in_words({key: own[key] for key in own if own[key] != usual.get(key, ())})])


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Flatten nested settings to strings by dotted name."""
    made: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            made |= flat(value, f"{before}{key}.")
        else:
            made[f"{before}{key}"] = str(value)
    return made
