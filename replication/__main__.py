"""``python -m replication``: write the page of claims, or list the state of every table and figure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from replication.catalogue import CATALOGUE
from replication.page import write_index
from replication.states import RESULTS, states


def main() -> int:
    """Run the command; the exit code is 2 if the folder of results is missing."""
    parser = argparse.ArgumentParser(prog="python -m replication", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path(RESULTS), help="the folder of results (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list the state of every result instead")
    options = parser.parse_args()
    if not options.results.is_dir():
        parser.error(f"there is no folder {options.results}; give the folder of results, {RESULTS} in a checkout")
    if options.list:
        for entry in (entry for entry in CATALOGUE if entry.commands):
            known = "; ".join(f"{name} ({state})" for name, state in states(entry, options.results).items())
            print(f"{entry.place or 'ours'}, {entry.name}: {known or 'not yet measured'}")
    else:
        print(f"written to {write_index(options.results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
