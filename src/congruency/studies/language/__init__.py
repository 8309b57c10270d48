"""The language model study: tune every method's learning rate, then compare the methods on new seeds."""
