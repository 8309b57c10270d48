"""The parts of one step of :mod:`congruency.corrector`, in the order in which a step uses them.

selection (the parameters), updates (the weights before an update), gather and elements (the tensors), problem and
distances (the constraints), counts (counts and means), stats (statistics for users), watch (warnings).
"""
