"""``python -m congruency``: the command line without the script."""

from congruency.cli import main

main()
