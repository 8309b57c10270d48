"""The long form of all fuzz targets: `make fuzz`, or `python tests/fuzz/fuzz_long.py --minutes 10 --out FILE`.

Every target gets an equal share of the time, in rounds with seeds of their own. The numbers of inputs tried are written
down with what became of them. A failure prints the smallest input that shows it, and ends the run with status 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import fuzz_all  # noqa: E402, F401
import torch  # noqa: E402
from fuzz_harness import TARGETS, Target, run  # noqa: E402

from congruency.files import write_together  # noqa: E402
from congruency.report.tables import Table, to_markdown  # noqa: E402

_ROUND = 400


def spend(one: Target, seconds: float, start: int) -> dict[str, Any]:
    """Rounds of one target until its time is over."""
    found: Counter[str] = Counter()
    began = time.perf_counter()
    rounds = 0
    while time.perf_counter() - began < seconds:
        found += run(one, _ROUND, start=start + rounds)
        rounds += 1
    taken = time.perf_counter() - began
    return {
        "holds": one.holds,
        "inputs": found.total(),
        "became": dict(found.most_common()),
        "seconds": round(taken, 1),
    }


def fill(page: Path, content: dict[str, Any]) -> None:
    """Put the numbers into a page, between two comments."""
    rows = [[name, f"{one['inputs']:,}", one["holds"]] for name, one in content["targets"].items()]
    table = Table(f"`{content['command']}`", ["target", "inputs", "what must hold"], rows)
    text = re.sub(
        r"(<!-- measured: fuzz -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{content['inputs']:,} inputs in all.\n\n{to_markdown(table)}\n\n{found[2]}",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    write_together(page.parent, {page.name: text})


def main() -> int:
    """Spend the time, print a line a target, write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="another one tries other inputs")
    parser.add_argument("--only", help="only targets whose name has this in it")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parser.add_argument("--page", type=Path, help="a page to put the numbers into, docs/robustness.md")
    parser.add_argument("--show", type=Path, metavar="JSON", help="try nothing, take numbers that were written")
    options = parser.parse_args()
    if options.show:
        fill(options.page, json.loads(options.show.read_text(encoding="utf-8")))
        return 0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = [one for one in TARGETS.values() if not options.only or options.only in one.name]
    each = 60 * options.minutes / max(1, len(chosen))
    results, failed = {}, []
    for one in chosen:
        try:
            results[one.name] = spend(one, each, 1_000_000 * options.seed)
            print(f"{one.name}: {results[one.name]['inputs']} inputs, {results[one.name]['became']}", flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(one.name)
            print(f"{one.name}: FAILED", flush=True)
    print(f"{sum(one['inputs'] for one in results.values())} inputs in all; failed: {', '.join(failed) or 'none'}")
    if failed:
        return 1
    if options.out or options.page:
        content = {
            "command": f"python tests/fuzz/fuzz_long.py --minutes {options.minutes:g} --seed {options.seed}",
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("torch", "numpy", "scipy", "pillow", "hypothesis")},
            "inputs": sum(one["inputs"] for one in results.values()),
            "targets": results,
        }
        if options.out:
            write_together(options.out.parent, {options.out.name: json.dumps(content, indent=1) + "\n"})
        if options.page:
            fill(options.page, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
