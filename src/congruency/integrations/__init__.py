"""DCL inside other people's training frameworks.

Nothing of a framework is imported until its module is: ``congruency.integrations.lightning``, ``.transformers``,
``.avalanche`` and ``.torchmetrics``.
"""
