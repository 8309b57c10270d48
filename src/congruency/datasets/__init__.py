"""Labelled image data sets in the formats in which they are published; shared by all task families."""

from congruency.datasets.cache import Cache
from congruency.datasets.images import Catalogue, LabelledImages
from congruency.datasets.loading import SETS, Split, catalogue, find, load

__all__ = ["SETS", "Cache", "Catalogue", "LabelledImages", "Split", "catalogue", "find", "load"]
