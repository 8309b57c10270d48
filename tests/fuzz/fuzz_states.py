"""States and checkpoints that are not what they should be: refused with a reason, and nothing changed."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fuzz_harness import attempt, exploits, target
from fuzz_mutations import damaged, mutated
from hypothesis import strategies as st
from torch import Tensor, nn

import congruency
from congruency import datasets
from congruency.training.checkpoints import CheckpointError, Checkpoints, load_checkpoint


def _network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def _gradients(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    model.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()


def _dcl(accumulate: Any = "weights") -> tuple[Any, Callable[[], None]]:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dcl = congruency.DCL(optimizer, references=2, window=9, accumulate=accumulate)
    return dcl, _stepping(model, optimizer)


def _gem() -> tuple[Any, Callable[[], None]]:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gem = congruency.GEM(optimizer, model=model, size=4)
    for task in range(3):
        gem.observe(torch.randn(3, 3), torch.tensor([0, 1, 0]), task)
    return gem, _stepping(model, optimizer)


def _both() -> tuple[Any, Callable[[], None]]:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = congruency.EpisodicMemory(model, size=4)
    corrector = congruency.Corrector(optimizer, constraints=[congruency.References(window=9), memory])
    for task in range(2):
        memory.observe(torch.randn(3, 3), torch.tensor([0, 1, 0]), task)
    return corrector, _stepping(model, optimizer)


def _meter() -> tuple[Any, Callable[[], None]]:
    model = _network()
    meter = congruency.CongruencyMeter(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        _gradients(model, 1)
        meter.update()
        optimizer.step()
        meter.compute()

    return meter, step


def _stepping(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        _gradients(model, 1)
        optimizer.step()

    return step


_MAKERS = {
    "DCL of weights": _dcl,
    "DCL of gradients": lambda: _dcl("gradients"),
    "GEM": _gem,
    "DCL and GEM": _both,
    "meter": _meter,
}


def _plain(value: Any) -> Any:
    """A state that can be compared: tensors as types and bytes, for nan is nan."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().clone().contiguous().view(-1).tolist().__repr__()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


@target(
    "load_state_dict refuses what does not fit with ValueError or TypeError and changes nothing; else it works", 150
)
def state_dicts(data: st.DataObject, folder: Path) -> str:
    kind = data.draw(st.sampled_from(list(_MAKERS)))
    held, step = _MAKERS[kind]()
    for _ in range(data.draw(st.integers(0, 4))):
        step()
    before = _plain(held.state_dict())
    state = mutated(data, held.state_dict())
    found = attempt(lambda: held.load_state_dict(state), folder, errors=(ValueError, TypeError))
    if isinstance(found, Exception):
        assert _plain(held.state_dict()) == before, "a refused state has changed the object"
        step()
        return "refused"
    try:
        step()
        step()
    except RuntimeError:  # samples of a size that the model does not take, which only the model can know
        assert "GEM" in kind
        return "loaded, and refused by the model"
    return "loaded"


def _checkpoint(step: int) -> dict[str, Any]:
    return {"step": step, "model": _network().state_dict(), "record": 7, "config": {"epochs": 2}}


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@target("a damaged last checkpoint is put aside and the one before is taken, whole; nothing in it is executed", 60)
def checkpoints(data: st.DataObject, folder: Path) -> str:
    store = Checkpoints(folder / "run")
    store.save(_checkpoint(1), 1)
    last = store.save(_checkpoint(2), 2)
    assert last is not None
    kind = data.draw(st.sampled_from(["damage", "damage", "exploit", "junk"]))
    if kind == "damage":
        last.write_bytes(damaged(data, last.read_bytes()))
    elif kind == "exploit":
        last.write_bytes(_saved({**_checkpoint(2), "more": data.draw(st.sampled_from(exploits()))}))
    else:
        last.write_bytes(data.draw(st.binary(max_size=200)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = attempt(store.load, folder)
    assert not isinstance(found, Exception)
    path, state = found
    if path == last:  # flipped bytes may lie in padding, or in a number that nobody can know to be wrong
        assert kind == "damage"
        return "still readable"
    assert state["step"] == 1
    assert all(torch.equal(state["model"][name], value) for name, value in _network().state_dict().items())
    assert Path(str(last) + ".unreadable").exists()
    return "went back"


@target(
    "files that torch reads (checkpoint, cache, prepared set, network): a clear error or the content, no code run", 60
)
def torch_files(data: st.DataObject, folder: Path) -> str:
    path = folder / "content.pt"
    kind = data.draw(st.sampled_from(["checkpoint", "cache", "prepared", "saliency model"]))
    contents: dict[str, Any] = {
        "checkpoint": _checkpoint(3),
        "cache": _cached(),
        "prepared": _prepared(),
        "saliency model": {
            "format": "congruency saliency model, version 2", "model": "salicon", "backbone": "resnet18",
            "options": {}, "preprocessing": {"size": [3, 4], "aspect": "pad"}, "state": {},
        },
    }  # fmt: skip
    content = contents[kind]
    how = data.draw(st.sampled_from(["damage", "mutate", "mutate", "exploit"]))
    if how == "exploit":
        content = {**content, "more": data.draw(st.sampled_from(exploits()))}
    elif how == "mutate" or kind == "saliency model":
        content = mutated(data, content)
    path.write_bytes(damaged(data, _saved(content)) if how == "damage" else _saved(content))
    found = attempt(_reader(kind, path), folder, named=("content.pt",), errors=(ValueError, CheckpointError))
    assert how != "exploit" or isinstance(found, Exception)
    return "refused" if isinstance(found, Exception) else "read"


def _reader(kind: str, path: Path) -> Callable[[], Any]:
    if kind == "checkpoint":
        return lambda: load_checkpoint(path)
    if kind == "cache":
        return lambda: datasets.Cache(path, {"size": 2}).load()
    if kind == "saliency model":
        from congruency.saliency.models import load_model

        _load_libraries()
        return lambda: load_model(path)
    from congruency.saliency.data import load_prepared

    return lambda: load_prepared(path)


@cache
def _load_libraries() -> None:
    """What the first network loads with it is no doing of a file."""
    from congruency.saliency.models import create

    create("salicon", "resnet18")


def _cached() -> dict[str, Any]:
    return {
        "format": 1, "made_of": {"size": 2}, "images": torch.zeros(2, 3, 2, 2, dtype=torch.uint8),
        "labels": torch.tensor([0, 1]), "classes": ["a", "b"],
    }  # fmt: skip


def _prepared() -> dict[str, Any]:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (9, 8, 7)).save(buffer, "JPEG")
    image = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    return {
        "format": "congruency saliency data, version 1", "name": "x", "version": None, "pixels_per_degree": 24.0,
        "size": [3, 4], "images": torch.cat([image, image]), "lengths": [len(image), len(image)],
        "names": ["a.jpg", "b.jpg"], "frames": [[6, 8], [6, 8]], "outside": [0, 1], "aspect": "pad",
        "fixations": [[torch.tensor([[1.0, 2.0]])], []],
    }  # fmt: skip
