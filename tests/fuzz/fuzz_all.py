"""All fuzz targets: importing it fills the registry."""

import fuzz_datasets  # noqa: F401
import fuzz_reports  # noqa: F401
import fuzz_saliency  # noqa: F401
import fuzz_solver  # noqa: F401
import fuzz_states  # noqa: F401
