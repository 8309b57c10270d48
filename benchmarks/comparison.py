r"""One projection, four programs: accuracy on ill-conditioned problems, and the time of a step.

    python -m benchmarks.comparison --avalanche PYTHON --out benchmarks/results/comparison-cpu.json \
        --page docs/comparison.md
    make bench-comparison                   # sets up Avalanche's environment, measures, writes the page's numbers

The problem is GEM's and DCL's: the point nearest to a gradient g that agrees with all constraints c_i,

    x = argmin 1/2 |x - h|^2   s.t.  <c_i, x> >= 0,        h = g + margin * sum_i c_i.

Each program is used as its documentation says:

- ours: ``congruency.project``, and a ``Corrector`` with ``Directions`` (what GEM and DCL run on);
- TorchJD: ``DualProj`` on the matrix ``[g; C]`` with the preference vector ``(1, 0, ..., 0)``. It projects the weighted
  sum of the rows, here g, onto their dual cone, which also requires ``<g, x> >= 0``. The nearest point of a cone has
  ``<g, x> = |x|^2``, so that this adds no condition and the problem is the same. With a margin it is not, and is left
  out. Also with very little regularisation (``reg_eps=1e-12, norm_eps=0``);
- Avalanche: ``GEMPlugin.solve_quadprog`` for accuracy, the hook that calls it (``after_backward``) for the time;
- on the host: float64 numpy and quadprog, a ridge of 1e-12 of the trace.

Results are compared with an active-set method in rational arithmetic, without rounding errors. Times are those of
correcting the gradient of one vector of float32 parameters, all constraints already in memory, in turns, on one thread.
TorchJD receives its matrix already stacked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import congruency
from congruency.files import write_together
from congruency.report.tables import Table, to_markdown
from congruency.studies.bench import machine
from congruency.studies.demo import one_thread
from tests.oracles import project_exactly

TOLERANCES = (1e-2, 1e-4, 1e-6)
AGAINST = 1e-3  # a result this far on the wrong side of a constraint, in units of |h|, violates it
SIZES = [(n, p) for p in (10_000, 100_000, 1_000_000) for n in (1, 5, 19)]


@dataclass(frozen=True)
class Problem:
    """A gradient (p,), constraints (n, p) as rows and a margin."""

    gradient: Tensor
    rows: Tensor
    margin: float = 0.0

    def start(self) -> Tensor:
        """h, whose projection is the solution."""
        return self.gradient + self.margin * self.rows.sum(0)


# --- the families of problems


Family = Callable[[torch.Generator], Problem]


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _whole(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))


def _rows(generator: torch.Generator, margin: float = 0.0) -> Problem:
    n, p = _whole(generator, 1, 8), _whole(generator, 8, 12)
    return Problem(_normal(generator, p), _normal(generator, n, p), margin)


def _zero_rows(generator: torch.Generator) -> Problem:
    problem = _rows(generator)
    problem.rows[torch.rand(len(problem.rows), generator=generator) < 0.5] = 0.0
    problem.rows[0] = 0.0
    return problem


def _repeated(generator: torch.Generator) -> Problem:
    problem = _rows(generator)
    return Problem(problem.gradient, problem.rows.repeat_interleave(2, 0))


def _opposite(generator: torch.Generator) -> Problem:
    problem = _rows(generator)
    return Problem(problem.gradient, torch.cat([problem.rows, -problem.rows[: _whole(generator, 1, 8)]]))


def _close(generator: torch.Generator, sign: float) -> Problem:
    """Rows at angles of 1e-2 to 1e-6 to one direction, or half of them to its opposite."""
    n, p = _whole(generator, 2, 6), 8
    angle = 10 ** (-2 - 4 * torch.rand(n, 1, generator=generator, dtype=torch.float64))
    base = _normal(generator, p)
    rows = base + angle * _normal(generator, n, p)
    rows[: n // 2] *= sign
    return Problem(_normal(generator, p) - (base if sign > 0 else 0), rows)


def _scales(generator: torch.Generator) -> Problem:
    """Every row and the gradient at its own scale, from 1e-12 to 1e12."""
    problem = _rows(generator)
    size = 10 ** (24 * torch.rand(len(problem.rows) + 1, 1, generator=generator, dtype=torch.float64) - 12)
    return Problem(problem.gradient * size[0], problem.rows * size[1:])


def _small(generator: torch.Generator) -> Problem:
    """Rows of size 1e-3: displacements after a few steps, or gradients late in training."""
    problem = _rows(generator)
    return Problem(problem.gradient, problem.rows * 1e-3)


def _all_small(generator: torch.Generator) -> Problem:
    """Gradient and rows of size 1e-3."""
    problem = _rows(generator)
    return Problem(problem.gradient * 1e-3, problem.rows * 1e-3)


def _crowded(generator: torch.Generator) -> Problem:
    n, p = _whole(generator, 5, 12), _whole(generator, 2, 4)
    return Problem(_normal(generator, p), _normal(generator, n, p))


def _zero_gradient(generator: torch.Generator) -> Problem:
    problem = _rows(generator)
    return Problem(torch.zeros_like(problem.gradient), problem.rows)


FAMILIES: dict[str, Family] = {
    "random rows": _rows,
    "rows of size 0.001": _small,
    "rows and gradient of size 0.001": _all_small,
    "zero rows among them": _zero_rows,
    "every row twice": _repeated,
    "rows and their opposites": _opposite,
    "nearly one direction": lambda generator: _close(generator, 1.0),
    "nearly opposite": lambda generator: _close(generator, -1.0),
    "sizes from 1e-12 to 1e12": _scales,
    "more rows than dimensions": _crowded,
    "zero gradient": _zero_gradient,
    "margin 0.5": lambda generator: _rows(generator, 0.5),
}


# --- the programs, one solution each


def by_project(problem: Problem) -> Tensor:
    """Ours: the function."""
    return congruency.project(problem.gradient, problem.rows, problem.margin)


def by_corrector(problem: Problem) -> Tensor:
    """Ours: the correction inside ``optimizer.step()``."""
    weight, correct = corrector_of(problem)
    correct()
    assert weight.grad is not None
    return weight.grad


def corrector_of(problem: Problem) -> tuple[nn.Parameter, Callable[[], None]]:
    """A parameter with the gradient, and the function that corrects it."""
    weight = nn.Parameter(torch.zeros_like(problem.gradient))
    weight.grad = problem.gradient.clone()
    directions = congruency.Directions(margin=problem.margin)
    directions.set([[row] for row in problem.rows], [weight])
    corrector = congruency.Corrector(torch.optim.SGD([weight], lr=0.1), None, [directions], attach=False)
    return weight, corrector.correct


class CannotBePosed(Exception):
    """A program cannot express this problem."""


def by_torchjd(problem: Problem, exactly: bool = False) -> Tensor:
    """TorchJD: the gradient as the first row, with the whole preference."""
    matrix, aggregate = torchjd_of(problem, exactly)
    return aggregate(matrix)


def torchjd_of(problem: Problem, exactly: bool = False) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The matrix and the aggregator."""
    from torchjd.aggregation import DualProj
    from torchjd.linalg import QuadprogProjector

    if problem.margin:
        raise CannotBePosed("DualProj has no margin")
    preference = torch.zeros(len(problem.rows) + 1, dtype=problem.rows.dtype)
    preference[0] = 1.0
    projector = QuadprogProjector(norm_eps=0.0, reg_eps=1e-12) if exactly else None
    return torch.cat([problem.gradient.unsqueeze(0), problem.rows]), DualProj(preference, projector)


def by_host(problem: Problem) -> Tensor:
    """On the host, as the paper computes DCL."""
    weight, correct = host_of(problem)
    correct()
    assert weight.grad is not None
    return weight.grad


def host_of(problem: Problem) -> tuple[nn.Parameter, Callable[[], None]]:
    """A parameter with the gradient, and the function that corrects it: all copied to the host, float64 and quadprog.

    Constraints are references minus weights, and the weights are 0.
    """
    import quadprog

    weight = nn.Parameter(torch.zeros_like(problem.gradient))
    weight.grad = problem.gradient.clone()
    points = list(problem.rows.numpy().astype(np.float64))

    def correct() -> None:
        weights, gradient = (t.detach().cpu().numpy().astype(np.float64) for t in (weight, weight.grad))
        rows = np.stack([point - weights for point in points])
        gram, identity = rows @ rows.T, np.eye(len(points))
        ridge = 1e-12 * np.trace(gram) * identity  # quadprog needs a positive definite matrix
        bounds = np.full(len(points), problem.margin)
        multipliers = quadprog.solve_qp(gram + ridge, -(rows @ gradient), identity, bounds)[0]
        weight.grad.copy_(torch.from_numpy(gradient + rows.T @ multipliers))

    return weight, correct


class Avalanche:
    """Avalanche's GEM in a separate process, by line-based requests."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        script = Path(__file__).with_name("avalanche_projection.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, str(script), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request, return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                found: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return found
        raise RuntimeError("Avalanche's process ended; its message is above")

    def answers(self, problems: Sequence[Problem]) -> list[Tensor | str]:
        """A tensor or an error per problem."""
        torch.save([vars(problem) for problem in problems], self._folder / "problems.pt")
        self.ask(do="solve", problems="problems.pt", answers="answers.pt")
        found = torch.load(self._folder / "answers.pt", weights_only=True)
        pairs = zip(found["answers"], found["errors"], strict=True)
        return [error if answer is None else answer for answer, error in pairs]

    def seconds(self, problem: Problem, name: str, repeats: int) -> list[float]:
        """Seconds of each of several steps."""
        path = self._folder / f"{name}.pt"
        if not path.exists():
            torch.save(vars(problem), path)
        seconds: list[float] = self.ask(do="time", problem=path.name, repeats=repeats)["seconds"]
        return seconds

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# --- accuracy


def exact(problem: Problem) -> Tensor:
    """The solution in rational arithmetic, as the tests compute it."""
    return torch.as_tensor(project_exactly(problem.gradient.tolist(), problem.rows.tolist(), problem.margin))


def answered(program: Callable[[Problem], Tensor], problem: Problem) -> Tensor | str | None:
    """The solution, the error it raised, or None if the problem cannot be posed."""
    try:
        return program(problem).detach().double()
    except CannotBePosed:
        return None
    except Exception as reason:
        return f"{type(reason).__name__}: {reason}"


def judge(problem: Problem, truth: Tensor, answer: Tensor | str) -> dict[str, Any]:
    """The error of a solution in units of |h|, and whether it violates a constraint."""
    if isinstance(answer, str):
        return {"raised": answer}
    if not torch.isfinite(answer).all():
        return {"nan": True}
    size = float(torch.linalg.vector_norm(problem.start())) or 1.0
    norms = torch.linalg.vector_norm(problem.rows, dim=-1)
    unit = problem.rows / torch.where(norms > 0, norms, 1.0).unsqueeze(-1)
    return {
        "error": float(torch.linalg.vector_norm(answer - truth)) / size,
        "against": float((unit @ (answer / size)).min()) < -AGAINST,
    }


def summed(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the problems of one family, for one program."""
    count = len(found)
    errors = [one["error"] for one in found if "error" in one]
    raised = sorted({one["raised"].splitlines()[0][:120] for one in found if "raised" in one})
    return {
        "problems": count,
        **{f"within_{tolerance:g}": sum(e <= tolerance for e in errors) / count for tolerance in TOLERANCES},
        "raised": sum("raised" in one for one in found) / count,
        "not_finite": sum("nan" in one for one in found) / count,
        "against_a_row": sum(bool(one.get("against")) for one in found) / count,
        "median_error": statistics.median(errors) if errors else None,
        "largest_error": max(errors, default=None),
        "errors_raised": raised,
    }


def correctness(count: int, seed: int, avalanche: Avalanche | None) -> dict[str, dict[str, Any]]:
    """Family -> program -> shares."""
    programs: dict[str, Callable[[Problem], Tensor]] = {
        "congruency.project": by_project,
        "congruency.Corrector": by_corrector,
        "TorchJD": by_torchjd,
        "TorchJD, least regularisation": lambda problem: by_torchjd(problem, exactly=True),
        "host way": by_host,
    }
    tables: dict[str, dict[str, Any]] = {}
    for place, (name, family) in enumerate(FAMILIES.items()):
        generator = torch.Generator().manual_seed(1000 * seed + place)
        problems = [family(generator) for _ in range(count)]
        truths = [exact(problem) for problem in problems]
        given = {name: [answered(program, problem) for problem in problems] for name, program in programs.items()}
        if avalanche is not None:
            given["Avalanche"] = list(avalanche.answers(problems))
        tables[name] = {}
        for program, answers in given.items():
            posed = [(p, t, a) for p, t, a in zip(problems, truths, answers, strict=True) if a is not None]
            tables[name][program] = summed([judge(*one) for one in posed]) if posed else None
        print(f"  {name}: done", flush=True)
    return tables


# --- the time of a step


def conflicting(n: int, p: int, seed: int) -> Problem:
    """Violated constraints only, in float32, so that every program has to solve and write."""
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(p, generator=generator)
    rows = torch.randn(n, p, generator=generator) - 0.3 * gradient
    assert bool((rows @ gradient < 0).all())
    return Problem(gradient, rows)


def timed(correct: Callable[[], object], before: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call, without those of ``before``."""
    seconds = []
    for _ in range(repeats):
        before()
        began = time.perf_counter()
        correct()
        seconds.append(time.perf_counter() - began)
    return seconds


def cost(n: int, p: int, rounds: int, avalanche: Avalanche | None, seed: int) -> dict[str, Any]:
    """The median time of a correction by each program, in turns, and its ratio to ours round by round."""
    problem = conflicting(n, p, seed)
    weight, correct = corrector_of(problem)
    hosted, by_the_host = host_of(problem)
    matrix, aggregate = torchjd_of(problem)
    taken = nn.Parameter(torch.zeros_like(problem.gradient))
    taken.grad = problem.gradient.clone()

    def restore(parameter: nn.Parameter) -> Callable[[], object]:
        return lambda: parameter.grad.copy_(problem.gradient)  # type: ignore[union-attr]

    programs: dict[str, Callable[[int], list[float]]] = {
        "congruency.Corrector": lambda k: timed(correct, restore(weight), k),
        "congruency.project": lambda k: timed(
            lambda: taken.grad.copy_(congruency.project(problem.gradient, problem.rows)), lambda: None, k
        ),
        "TorchJD": lambda k: timed(lambda: taken.grad.copy_(aggregate(matrix)), lambda: None, k),
        "host way": lambda k: timed(by_the_host, restore(hosted), k),
    }
    if avalanche is not None:
        programs["Avalanche"] = lambda k: avalanche.seconds(problem, f"time-{n}-{p}", k)
    for program in programs.values():
        program(2)  # warm up
    repeats = max(1, min(20, 2_000_000 // (n * p)))
    medians: dict[str, list[float]] = {name: [] for name in programs}
    fastest = dict.fromkeys(programs, float("inf"))
    order = list(programs)
    for turn in range(rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:  # vary who runs after whom
            seconds = programs[name](repeats)
            medians[name].append(statistics.median(seconds))
            fastest[name] = min(fastest[name], *seconds)
    ours = medians["congruency.Corrector"]
    return {
        "rows": n,
        "parameters": p,
        "rounds": rounds,
        "calls_a_round": repeats,
        "seconds": {name: statistics.median(each) for name, each in medians.items()},
        "spread": {name: _quartiles(each) for name, each in medians.items()},
        "fastest": fastest,
        "times_ours": {
            name: statistics.median(a / b for a, b in zip(each, ours, strict=True)) for name, each in medians.items()
        },
        "times_ours_fastest": {name: each / fastest["congruency.Corrector"] for name, each in fastest.items()},
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    low, _, high = statistics.quantiles(values, n=4)
    return [low, high]


# --- the report


def correctness_table(tables: dict[str, dict[str, Any]], key: str, caption: str) -> Table:
    """Family by program, one share in percent."""
    programs = list(dict.fromkeys(program for shares in tables.values() for program in shares))
    rows = []
    for family, shares in tables.items():
        cells = ["-" if shares.get(one) is None else f"{100 * shares[one][key]:.0f} %" for one in programs]
        rows.append([family, *cells])
    return Table(caption, ["problems", *programs], rows)


def cost_table(costs: Sequence[dict[str, Any]]) -> Table:
    """Milliseconds of ours, and the others as multiples of it."""
    programs = [name for name in costs[0]["seconds"] if name != "congruency.Corrector"]
    rows = []
    for one in costs:
        ours = (
            f"{1e3 * one['seconds']['congruency.Corrector']:.3g} ({1e3 * one['fastest']['congruency.Corrector']:.3g})"
        )
        cells = [f"{one['times_ours'][name]:.1f} ({one['times_ours_fastest'][name]:.1f})" for name in programs]
        rows.append([str(one["rows"]), f"{one['parameters']:,}", ours, *cells])
    caption = (
        "One correction on one thread: ours in milliseconds, the others in times ours. Medians, and in brackets the "
        "fastest call of each, which other work on the machine disturbs least."
    )
    return Table(caption, ["rows", "parameters", "congruency.Corrector, ms", *programs], rows)


def read(path: Path) -> dict[str, Any]:
    """A stored result."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def sections(result: dict[str, Any]) -> dict[str, str]:
    """The tables of the page by name."""
    tables = result["correctness"]
    captions = {
        f"within_{t:g}": f"Answers within {t:g} of |h| of the exact one, share of problems." for t in TOLERANCES
    }
    captions["against_a_row"] = (
        f"Answers on the wrong side of a row by more than {AGAINST:g} of |h|, share of problems."
    )
    captions["raised"] = "No answer but an error, share of problems."
    made = {key: to_markdown(correctness_table(tables, key, caption)) for key, caption in captions.items()}
    if result["cost"]:
        made["cost"] = to_markdown(cost_table(result["cost"]))
    load = f"{min(result['load_before_each']):.1f} to {max(result['load_before_each']):.1f}"
    versions = ", ".join(f"{name} {what}" for name, what in result["versions"].items())
    made["run"] = f"{result['machine']['processor']}, one thread, load of the machine {load}; {versions}."
    return made


def fill(page: Path, result: dict[str, Any]) -> None:
    """Write the tables into a page, each between its two comments."""
    text = page.read_text(encoding="utf-8")
    for name, table in sections(result).items():
        pattern = re.compile(rf"(<!-- measured: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", text)  # type: ignore[misc]
    write_together(page.parent, {page.name: text})


def report(result: dict[str, Any], page: Path | None) -> None:
    """Print the tables, and write them into the page if given."""
    print("\n\n".join(sections(result).values()))
    if page:
        fill(page, result)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200, help="problems per family")
    parser.add_argument("--rounds", type=int, default=15, help="turns of the timing; medians over them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--avalanche", metavar="PYTHON", help="a Python that has avalanche-lib 0.6")
    parser.add_argument("--show", type=Path, metavar="JSON", help="measure nothing, show a stored result")
    parser.add_argument("--page", type=Path, help="page to write the tables into, docs/comparison.md")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}: a median needs its spread")
    if options.show:
        report(read(options.show), options.page)
        return
    with tempfile.TemporaryDirectory() as folder, one_thread():
        avalanche = Avalanche(options.avalanche, Path(folder)) if options.avalanche else None
        load = [os.getloadavg()[0]]
        tables = correctness(options.problems, options.seed, avalanche)
        costs = []
        for n, p in SIZES if options.rounds else []:
            costs.append(cost(n, p, options.rounds, avalanche, options.seed))
            load.append(os.getloadavg()[0])
            print(f"  {n} rows of {p:,}: {1e3 * costs[-1]['seconds']['congruency.Corrector']:.3g} ms", flush=True)
        versions = {name: version(name) for name in ("torch", "torchjd", "quadprog", "numpy")}
        versions["congruency"] = congruency.__version__
        if avalanche is not None:
            versions |= {f"avalanche's {name}": what for name, what in avalanche.ask(do="about").items()}
            avalanche.close()
    result = {
        "command": f"python -m benchmarks.comparison --problems {options.problems} --rounds {options.rounds} "
        f"--seed {options.seed} --avalanche PYTHON",
        "machine": machine(torch.device("cpu")) | {"threads": 1},
        "versions": versions,
        "load_before_each": load,
        "tolerances_of_h": TOLERANCES,
        "correctness": tables,
        "cost": costs,
    }
    if options.out:
        write_together(options.out.parent, {options.out.name: json.dumps(result, indent=1) + "\n"})
    report(result, options.page)


if __name__ == "__main__":
    main()
