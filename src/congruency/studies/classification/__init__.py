"""Image classification studies: the paper's tables, grids of short runs, and the runner."""
