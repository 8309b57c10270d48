"""Time the saliency metrics against a plain numpy implementation, image by image, in one process.

    python benchmarks/saliency_metrics.py --device cuda --maps 1000
    python benchmarks/saliency_metrics.py --device cpu --maps 40 --threads 1
    python benchmarks/saliency_metrics.py --sums --device cpu --maps 4 --height 768 --width 1024 --threads 1

The numpy side handles one image at a time, vectorised within the image, with ranks by sorting. It runs on one thread in
float64, numpy's default (``--numpy-dtype float32`` for the other). Both sides score the same maps, and their values are
compared before anything is timed.

With ``--sums`` the value-based metrics are compared with the same formulas summed in float32, in turn within one
process: what do sums in float64 cost, and what is the error of either against float64 throughout.
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
from congruency.saliency.metrics.checks import by_parts

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


def _dot32(left: Tensor, right: Tensor) -> Tensor:
    if left.device.type == "cpu":
        return torch.bmm(left.unsqueeze(-2), right.unsqueeze(-1)).flatten()
    return torch.linalg.vecdot(left, right)


def _centred32(maps: Tensor) -> Tensor:
    maps.amin(-1), maps.amax(-1)  # whether the map is constant
    return maps - maps.mean(-1, keepdim=True)


def float32_nss(saliency: Tensor, fixations: Tensor) -> Tensor:
    """Mean z-score at the fixations."""
    s = _centred32(saliency)
    return _dot32(s, fixations) / (_dot32(s, s) / s.shape[-1]).sqrt() / _sum32(fixations).squeeze(-1)


def float32_cc(saliency: Tensor, density: Tensor) -> Tensor:
    """Pearson's correlation."""
    s, q = _centred32(saliency), _centred32(density)
    return _dot32(s, q) / (_dot32(s, s).sqrt() * _dot32(q, q).sqrt())


def _sum32(maps: Tensor) -> Tensor:
    maps.amin(-1)  # whether a value is negative
    return maps.sum(-1, keepdim=True)


def float32_kl(saliency: Tensor, density: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the saliency from the density."""
    total, mass = _sum32(saliency), _sum32(density)
    ratio = saliency + EPSILON * total
    ratio = torch.div(density, ratio, out=ratio).add_(EPSILON * mass / total)
    return _dot32(density, ratio.log_()) / mass.squeeze(-1) + (total / mass).log().squeeze(-1)


def float32_sim(saliency: Tensor, density: Tensor) -> Tensor:
    """Overlap of the two distributions."""
    mass = _sum32(density)
    scaled = saliency * (mass / _sum32(saliency))
    return torch.minimum(scaled, density, out=scaled).sum(-1) / mass.squeeze(-1)


def float32_information_gain(saliency: Tensor, fixations: Tensor, baseline: Tensor) -> Tensor:
    """Bits per fixation over the baseline."""
    total, below = _sum32(saliency), _sum32(baseline)
    ratio = (saliency + EPSILON * total).div_(baseline + EPSILON * below)
    return _dot32(ratio.log2_(), fixations) / _sum32(fixations).squeeze(-1) + (below / total).log2().squeeze(-1)


def _in_chunks(score: Callable[..., Tensor], *maps: Tensor) -> Tensor:
    return by_parts(score, *(x.flatten(-2) for x in maps))


FLOAT32 = {
    "NSS": float32_nss, "CC": float32_cc, "KL": float32_kl, "SIM": float32_sim,
    "information gain": float32_information_gain,
}  # fmt: skip


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


def measure_sums(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Of each value-based metric: milliseconds per map with sums in float64 and in float32, and the largest errors."""
    device = torch.device(options.device)
    maps = {
        k: v.to(device) for k, v in make_maps(options.maps, options.height, options.width, options.fixations).items()
    }
    rows = {}
    for name, plain in FLOAT32.items():
        ours, _, needs = CASES[name]
        plain = partial(_in_chunks, plain)
        inputs = [maps[need] for need in ("saliency", *needs)]
        exact = ours(*(x.double() for x in inputs))
        pairs = [(seconds(partial(ours, *inputs), device, 1), seconds(partial(plain, *inputs), device, 1))
                 for _ in range(options.repeats)]  # in turn: what disturbs one disturbs the other  # fmt: skip
        fast, slow = (1e3 * min(times) / options.maps for times in zip(*pairs, strict=True))
        errors = [(score(*inputs).double() - exact).abs().max().item() for score in (ours, plain)]
        rows[name] = {"ours_ms": fast, "float32_ms": slow, "ratio": fast / slow,
                      "error": errors[0], "float32_error": errors[1]}  # fmt: skip
    return rows


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
    parser.add_argument("--sums", action="store_true", help="compare with sums in float32; use 20 repeats or more")
    parser.add_argument("--out", type=Path, help="also write the result here, as JSON")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.sums:
        rows = measure_sums(options)
        print(f"{'metric':<18}{'float64 sums':>14}{'float32 sums':>14}{'ratio':>8}{'error':>10}{'float32':>10}")
        for name, row in rows.items():
            times = f"{row['ours_ms']:>14.4f}{row['float32_ms']:>14.4f}{row['ratio']:>8.2f}"
            print(f"{name:<18}{times}{row['error']:>10.1e}{row['float32_error']:>10.1e}")
        return
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
