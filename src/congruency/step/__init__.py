"""The parts of one step that :mod:`congruency.corrector` puts together, in the order in which a step meets them.

selection (which parameters), updates (the weights before an update), problem (which constraints), gather and elements
(which tensors), counts (what is counted and averaged), stats (what users read), watch (what is warned of).
"""
