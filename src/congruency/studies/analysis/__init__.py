"""The paper's analyses: optimizer paths on a surface, the lower bound, reports on runs, pairs of samples."""
