"""Saliency data sets in their official layouts or in any folder; fixation maps and batches."""

from congruency.saliency.data.images import official_density, read_image
from congruency.saliency.data.loaders import cat2000, folder, mit1003, open_data, open_split, osie, osie_split, salicon
from congruency.saliency.data.points import Batch, collate, density, fixation_counts
from congruency.saliency.data.prepared import Prepared, load_prepared, prepare, prepare_in_memory
from congruency.saliency.data.preprocessing import Aspect, Preprocessing
from congruency.saliency.data.viewings import DataError, SaliencyData, Viewing

__all__ = [
    "Aspect", "Batch", "DataError", "Prepared", "Preprocessing", "SaliencyData", "Viewing", "cat2000", "collate",
    "density", "fixation_counts", "folder", "load_prepared", "mit1003", "official_density", "open_data", "open_split",
    "osie", "osie_split", "prepare", "prepare_in_memory", "read_image", "salicon",
]  # fmt: skip
