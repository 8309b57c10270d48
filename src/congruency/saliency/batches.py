"""Training batches of a saliency data set in memory, on the training device if possible."""

from collections.abc import Iterator

import torch
from torch import Tensor

from congruency.saliency.data.points import blurred, fixation_counts
from congruency.saliency.data.prepared import Prepared

_CHUNK = 64


class SaliencyBatches:
    """Batches ``(images, {"density", "fixations"})`` whose order depends only on the seed and the epoch.

    Images are uint8 (B, 3, h, w); densities (B, h, w) are blurred once, scaled to a maximum of 1 and kept in float16;
    fixations are counts. The last batch of an epoch may be smaller. ``batch`` is the size over all processes, which
    share each batch. The data are kept on ``device``: the training device, or the CPU if they do not fit.
    """

    def __init__(
        self,
        prepared: Prepared,
        batch: int = 8,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch < 1 or batch % world_size:
            raise ValueError(f"batch must be a multiple of the {world_size} processes and positive, got {batch}")
        self.images = prepared.images.to(device)
        self.fixations, self.density = _maps(prepared, torch.device(device))
        self._batch, self._seed, self._rank, self._world = batch, seed, rank, world_size

    def __len__(self) -> int:
        return -(-len(self.images) // self._batch)

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield the batches of an epoch from number ``start`` on."""
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + epoch)
        order = torch.randperm(len(self.images), generator=generator).to(self.images.device)
        for chosen in order.split(self._batch)[start:]:
            own = chosen[self._rank :: self._world] if len(chosen) >= self._world else chosen
            yield self._batch_of(own)

    def evaluation_batches(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield all images once, in the order of the data set; the same batches in every process."""
        for start in range(0, len(self.images), self._batch):
            yield self._batch_of(slice(start, start + self._batch))

    def _batch_of(self, own: Tensor | slice) -> tuple[Tensor, dict[str, Tensor]]:
        return self.images[own], {"density": self.density[own].float(), "fixations": self.fixations[own].float()}


def _maps(prepared: Prepared, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return fixation counts in uint8 and densities in float16 with a maximum of 1, (N, h, w) each."""
    viewings, preprocessing = prepared.data.viewings, prepared.preprocessing
    height, width = preprocessing.size
    counts = torch.empty(len(viewings), height, width, dtype=torch.uint8, device=device)
    densities = torch.empty(len(viewings), height, width, dtype=torch.float16, device=device)
    for start in range(0, len(viewings), _CHUNK):
        part = viewings[start : start + _CHUNK]
        points = [preprocessing.points(v.points, (v.height, v.width)) for v in part]
        some = fixation_counts(points, (height, width), device=device)
        maps = blurred(some, part, preprocessing)
        if preprocessing.aspect == "pad":  # cut the density at the image's border, as without padding
            inside = torch.zeros_like(maps)
            for i, v in enumerate(part):
                preprocessing.crop(inside[i], (v.height, v.width)).fill_(1.0)
            maps *= inside
        peak = maps.amax((-2, -1), keepdim=True)
        counts[start : start + _CHUNK] = some.clamp(max=255).to(torch.uint8)
        densities[start : start + _CHUNK] = (maps / peak.masked_fill(peak == 0, 1.0)).half()
    return counts, densities
