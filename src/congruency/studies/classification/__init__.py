"""Image classification: the paper's recipes and tables, our grids of short runs, and how a run is executed."""
