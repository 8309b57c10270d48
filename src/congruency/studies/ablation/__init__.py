"""``congruency ablate``: DCL over a grid of windows and reference points, on one machine or on a cluster."""
