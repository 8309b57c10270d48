"""The paper's analyses: paths on a surface, the lower bound, curves of any set of runs, pairs of samples."""
