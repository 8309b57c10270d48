"""Image classification on the command line: `congruency train`, the paper's tables, and grids of short trainings."""
