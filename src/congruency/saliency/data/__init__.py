"""Saliency data sets in their official layouts or in any folder, fixation maps and batches."""

from congruency.saliency.data.folder import folder
from congruency.saliency.data.images import official_density, read_image
from congruency.saliency.data.mit1003 import mit1003
from congruency.saliency.data.opening import open_data
from congruency.saliency.data.osie import osie, osie_split
from congruency.saliency.data.points import Batch, collate, density, fixation_counts
from congruency.saliency.data.prepared import Prepared, load_prepared, prepare, prepare_in_memory
from congruency.saliency.data.salicon import salicon
from congruency.saliency.data.viewings import DataError, SaliencyData, Viewing

__all__ = [
    "Batch",
    "DataError",
    "Prepared",
    "SaliencyData",
    "Viewing",
    "collate",
    "density",
    "fixation_counts",
    "folder",
    "load_prepared",
    "mit1003",
    "official_density",
    "open_data",
    "osie",
    "osie_split",
    "prepare",
    "prepare_in_memory",
    "read_image",
    "salicon",
]
