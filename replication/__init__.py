"""Judge the paper: its claims, the results that decide them, and the page of verdicts."""
