"""Studies behind the command line: the demonstration, the benchmark, and the recipes of the paper's tables."""
