"""Which training samples disagree with what a classifier learns from all of them."""
