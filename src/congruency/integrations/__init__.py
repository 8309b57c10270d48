"""DCL inside other training frameworks.

A framework is imported only with its own module: ``congruency.integrations.lightning``, ``.transformers``,
``.avalanche`` and ``.torchmetrics``.
"""
