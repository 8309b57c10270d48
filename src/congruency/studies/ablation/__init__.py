"""DCL over a grid of its settings, for any row of a classification table or any image set."""
