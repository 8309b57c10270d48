"""The study of language models: every method at its own best learning rate, then compared on fresh seeds."""
