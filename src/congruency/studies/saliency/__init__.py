"""The saliency comparison: its recipes, its runs, its commands."""
