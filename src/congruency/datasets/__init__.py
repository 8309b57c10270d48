"""Labelled image sets, read from the formats in which people publish them; every task family reads them here."""

from congruency.datasets.cache import Cache
from congruency.datasets.catalogue import Catalogue
from congruency.datasets.images import LabelledImages
from congruency.datasets.loading import SETS, Split, catalogue, find, load

__all__ = ["SETS", "Cache", "Catalogue", "LabelledImages", "Split", "catalogue", "find", "load"]
