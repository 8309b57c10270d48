"""What every fuzz target shares: the registry, the ground it works on, and the watch over what it does there.

A target is a function of drawn data and an empty folder. It makes one hostile input, hands it to the program through
`attempt`, and returns a word for what became of it. The watch fails the target where the program starts a process,
opens a connection, or writes, moves or removes anything outside of the folder; where code of a file ran; and where what
lies around the folder has changed.
"""

from __future__ import annotations

import builtins
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

__all__ = ["MARK", "TARGETS", "Target", "attempt", "exploits", "run", "target", "watched"]

MARK = "code_of_a_file_ran"
"""The attribute of `builtins` that every exploit sets."""

Body = Callable[[st.DataObject, Path], str]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STARTING = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pty.spawn",
             "socket.connect", "socket.bind", "ctypes.dlopen", "webbrowser.open")  # fmt: skip
_CHANGING = ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod",
             "os.chown", "shutil.rmtree", "shutil.move", "shutil.unpack_archive")  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One fuzz target: its name, what must hold, the function, and how many inputs the test suite tries."""

    name: str
    holds: str
    body: Body
    examples: int


TARGETS: dict[str, Target] = {}


def target(holds: str, examples: int = 60) -> Callable[[Body], Body]:
    """Register a function under its own name."""

    def register(body: Body) -> Body:
        name = body.__name__
        assert name not in TARGETS
        TARGETS[name] = Target(name, holds, body, examples)
        return body

    return register


def attempt(call: Callable[[], Any], folder: Path, *, named: tuple[str, ...] = (), errors: Any = ValueError) -> Any:
    """The result of a call under watch, or the error where it was a clear one: of these kinds, and naming the input.

    Args:
        call: The program, with the hostile input.
        folder: Where it may write.
        named: The message must have one of these words: the name of the file at fault.
        errors: What it may raise.
    """
    with watched(folder):
        try:
            return call()
        except errors as reason:
            found = reason
    kind, message = type(found).__name__, str(found)
    assert len(message) > 15, f"{kind} has no helpful message: {message!r}"
    assert not named or any(name in message for name in named), f"{kind} names none of {named}: {message!r}"
    return found


class _Watch:
    folder: str | None = None
    asleep = False
    seen: list[str] = []  # noqa: RUF012


def _note(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook: it hears of every file opened and every process started, by whatever library."""
    if _Watch.folder is None or _Watch.asleep:
        return
    if event in _STARTING:
        _Watch.seen.append(f"{event} {args!r:.200}")
    elif event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITING and not _allowed(path):
            _Watch.seen.append(f"opened {path!r} for writing")
    elif event in _CHANGING:
        paths = [each for each in args[:2] if isinstance(each, str | bytes | os.PathLike)]
        if not all(map(_allowed, paths)):
            _Watch.seen.append(f"{event} {args!r:.200}")


def _allowed(path: Any) -> bool:
    if isinstance(path, int) or path is None:
        return True
    text = os.path.abspath(os.fsdecode(path))
    return (
        text.startswith(str(_Watch.folder) + os.sep)
        or text == _Watch.folder
        or text in ("/dev/null", "/dev/full")
        or text.endswith(".pyc")  # an import that the call was the first to need
        or "__pycache__" in text
    )


sys.addaudithook(_note)


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Fail where something is started, or written anywhere but in the folder."""
    _Watch.folder, _Watch.seen = str(folder), []
    try:
        yield
    finally:
        _Watch.folder = None
    assert not _Watch.seen, "; ".join(_Watch.seen[:5])
    assert not hasattr(builtins, MARK), "code of a file was executed"


def run(one: Target, examples: int, *, start: int | None = None) -> Counter[str]:
    """Try so many inputs, the same ones for the same `start`, and count what became of them."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as ground:
        inside = Path(ground) / "somewhere" / "inside"
        beside = _sentinels(Path(ground))

        def body(data: st.DataObject) -> None:
            shutil.rmtree(inside, ignore_errors=True)
            inside.mkdir(parents=True)
            found[one.body(data, inside)] += 1
            assert _listing(Path(ground), inside) == beside, "something outside of the folder has changed"

        _Watch.asleep = True  # libraries that are loaded at their first use may do as they like
        try:
            _tried(body, 12, None)
        finally:
            _Watch.asleep = False
        found.clear()
        _tried(body, examples, start)
    return found


def _tried(body: Callable[[st.DataObject], None], examples: int, start: int | None) -> None:
    tried = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=start is None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )(given(st.data())(body))
    (tried if start is None else seed(start)(tried))()


def _sentinels(ground: Path) -> dict[str, bytes]:
    """Files around the folder, named as hostile archives name theirs."""
    inside = ground / "somewhere" / "inside"
    inside.mkdir(parents=True)
    for name in ("evil.txt", "somewhere/evil.txt", "somewhere/inside.txt", "etc/passwd"):
        path = ground / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("as it was")
    return _listing(ground, inside)


def _listing(ground: Path, without: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(ground)): path.read_bytes() if path.is_file() else b""
        for path in sorted(ground.rglob("*"))
        if path != without and without not in path.parents
    }


class _Exploit:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.reduced


def exploits() -> list[Any]:
    """Objects whose pickles run code where they are loaded without care."""
    return [
        _Exploit(exec, f"import builtins; builtins.{MARK} = True"),
        _Exploit(eval, f"setattr(__import__('builtins'), {MARK!r}, True)"),
        _Exploit(os.system, "true"),
        _Exploit(exec, f"globals()['__builtins__'][{MARK!r}] = True", {}),
        _Exploit(__import__, "this_module_does_not_exist"),
    ]
