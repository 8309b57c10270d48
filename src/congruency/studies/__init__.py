"""What the command line runs: the demonstration, the benchmark, and recipes for the paper's tables."""
