"""Time the saliency metrics against a plain numpy implementation, image by image, in one process.

    python benchmarks/saliency_metrics.py --device cuda --maps 1000
    python benchmarks/saliency_metrics.py --device cpu --maps 40 --threads 1

The numpy side handles one image at a time, vectorised within the image, with ranks by sorting. It runs on one thread in
float64, numpy's default (``--numpy-dtype float32`` for the other). Both sides score the same maps, and their values are
compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from congruency.saliency import metrics

EPSILON = 2.0**-52


def numpy_nss(saliency: np.ndarray, fixations: np.ndarray) -> float:
    """Mean z-score at the fixations."""
    scores = (saliency - saliency.mean()) / saliency.std()
    return float((scores * fixations).sum() / fixations.sum())


def numpy_cc(saliency: np.ndarray, density: np.ndarray) -> float:
    """Pearson's correlation."""
    return float(np.corrcoef(saliency.ravel(), density.ravel())[0, 1])


def numpy_kl(saliency: np.ndarray, density: np.ndarray) -> float:
    """Kullback-Leibler divergence of the saliency from the density."""
    p, q = saliency / saliency.sum(), density / density.sum()
    return float((q * np.log(EPSILON + q / (p + EPSILON))).sum())


def numpy_sim(saliency: np.ndarray, density: np.ndarray) -> float:
    """Overlap of the two distributions."""
    return float(np.minimum(saliency / saliency.sum(), density / density.sum()).sum())


def numpy_information_gain(saliency: np.ndarray, fixations: np.ndarray, baseline: np.ndarray) -> float:
    """Bits per fixation over the baseline."""
    p, b = saliency / saliency.sum(), baseline / baseline.sum()
    gain = np.log2(p + EPSILON) - np.log2(b + EPSILON)
    return float((gain * fixations).sum() / fixations.sum())


def numpy_area(positive: np.ndarray, negative: np.ndarray) -> float:
    """The Mann-Whitney statistic, ties counted half, over the number of pairs."""
    both = np.concatenate([positive, negative])
    ordered = np.sort(both)
    ranks = (np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right") + 1) / 2
    pairs = len(positive) * len(negative)
    return float((ranks.sum() - len(positive) * (len(positive) + 1) / 2) / pairs)


def numpy_auc_judd(saliency: np.ndarray, fixations: np.ndarray) -> float:
    """Fixations against pixels without one."""
    return numpy_area(np.repeat(saliency.ravel(), fixations.ravel().astype(int)), saliency[fixations == 0])


def numpy_auc_borji(saliency: np.ndarray, fixations: np.ndarray) -> float:
    """Fixations against all pixels."""
    return numpy_area(np.repeat(saliency.ravel(), fixations.ravel().astype(int)), saliency.ravel())


def numpy_auc_shuffled(saliency: np.ndarray, fixations: np.ndarray, negatives: np.ndarray) -> float:
    """Fixations against other images' fixations."""
    positive = np.repeat(saliency.ravel(), fixations.ravel().astype(int))
    return numpy_area(positive, np.repeat(saliency.ravel(), negatives.ravel().astype(int)))


CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., float], tuple[str, ...]]] = {
    "NSS": (metrics.nss, numpy_nss, ("fixations",)),
    "CC": (metrics.cc, numpy_cc, ("density",)),
    "KL": (metrics.kl, numpy_kl, ("density",)),
    "SIM": (metrics.sim, numpy_sim, ("density",)),
    "information gain": (metrics.information_gain, numpy_information_gain, ("fixations", "baseline")),
    "AUC-Judd": (metrics.auc_judd, numpy_auc_judd, ("fixations",)),
    "AUC-Borji": (metrics.auc_borji, numpy_auc_borji, ("fixations",)),
    "AUC shuffled": (metrics.auc_shuffled, numpy_auc_shuffled, ("fixations", "negatives")),
}


def make_maps(count: int, height: int, width: int, fixations: int) -> dict[str, Tensor]:
    """Random maps with distinct values, random fixations, and the fixations of ten other images as negatives."""
    random = torch.Generator().manual_seed(0)

    def counts(number: int) -> Tensor:
        places = torch.randint(height * width, (count, number), generator=random)
        empty = torch.zeros(count, height * width)
        return empty.scatter_add_(1, places, torch.ones(places.shape)).view(count, height, width)

    return {
        "saliency": torch.rand(count, height, width, generator=random) + 0.01,
        "density": torch.rand(count, height, width, generator=random) + 0.01,
        "baseline": torch.rand(count, height, width, generator=random) + 0.01,
        "fixations": counts(fixations),
        "negatives": counts(10 * fixations),
    }


def one_by_one(score: Callable[..., float], arrays: list[np.ndarray], count: int) -> list[float]:
    """A plain loop over images."""
    return [score(*(array[i] for array in arrays)) for i in range(count)]


def seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The fastest of several calls: disturbances only make a measurement longer."""
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Both sides of every metric, in milliseconds per map."""
    device = torch.device(options.device)
    maps = make_maps(options.maps, options.height, options.width, options.fixations)
    arrays = {name: tensor.numpy().astype(options.numpy_dtype) for name, tensor in maps.items()}
    there = {name: tensor.to(device) for name, tensor in maps.items()}
    some = min(options.maps, options.numpy_maps)
    rows = {}
    for name, (ours, plain, needs) in CASES.items():
        inputs = [there[need] for need in ("saliency", *needs)]
        given = [arrays[need] for need in ("saliency", *needs)]
        expected = [plain(*(array[i] for array in given)) for i in range(min(4, some))]
        np.testing.assert_allclose(ours(*inputs)[: len(expected)].cpu().numpy(), expected, rtol=1e-3, atol=1e-4)
        fast = seconds(partial(ours, *inputs), device, options.repeats) / options.maps
        slow = seconds(partial(one_by_one, plain, given, some), torch.device("cpu"), options.repeats)
        rows[name] = {"ours_ms": 1e3 * fast, "numpy_ms": 1e3 * slow / some, "times": slow / some / fast}
    total = {key: sum(row[key] for row in rows.values()) for key in ("ours_ms", "numpy_ms")}
    rows["all"] = {**total, "times": total["numpy_ms"] / total["ours_ms"]}
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    return {
        "device": str(device),
        "machine": machine,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "numpy_dtype": options.numpy_dtype,
        "maps": options.maps,
        "numpy_maps": some,
        "size": [options.height, options.width],
        "fixations": options.fixations,
        "rows": rows,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--maps", type=int, default=1000, help="maps scored in one call")
    parser.add_argument("--numpy-maps", type=int, default=50, help="maps that numpy is timed on (its time is per map)")
    parser.add_argument("--numpy-dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--fixations", type=int, default=200, help="fixations per image")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="torch's threads on the CPU; 0 for the default")
    parser.add_argument("--out", type=Path, help="also write the result here, as JSON")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    result = measure(options)
    print(f"{result['maps']} maps of {options.height}x{options.width} on {result['machine']}; milliseconds per map")
    print(f"{'metric':<18}{'ours':>10}{'numpy':>10}{'times':>9}")
    for name, row in result["rows"].items():  # type: ignore[attr-defined]
        print(f"{name:<18}{row['ours_ms']:>10.4f}{row['numpy_ms']:>10.3f}{row['times']:>9.1f}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
