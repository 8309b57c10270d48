"""Images and where people looked at them: the sets in their official layouts, any folder, and density maps."""

from congruency.saliency.data.batches import Batch, collate
from congruency.saliency.data.folder import folder
from congruency.saliency.data.images import read_image
from congruency.saliency.data.mit1003 import mit1003
from congruency.saliency.data.official import official_density
from congruency.saliency.data.opening import open_data
from congruency.saliency.data.osie import osie, osie_split
from congruency.saliency.data.points import density, fixation_counts
from congruency.saliency.data.prepared import Prepared, load_prepared, prepare, read_whole
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
    "read_image",
    "read_whole",
    "salicon",
]
