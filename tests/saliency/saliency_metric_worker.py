"""The worker of the test of metrics over two ranks: ``torchrun saliency_metric_worker.py FOLDER``."""

import json
import sys
from pathlib import Path

import torch.distributed as dist
from saliency_maps import problem

from congruency.saliency import metrics

KINDS = {"nss": metrics.NSS, "auc_judd": metrics.AUCJudd, "auc_borji": metrics.AUCBorji}


def images():
    """Seven images, so that the ranks' shares differ; one without fixations."""
    saliency, fixations = problem(images=7, fixations=15)
    fixations[3] = 0
    return saliency, fixations


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saliency, fixations = images()
    results = {}
    for name, kind in KINDS.items():
        metric = kind()
        metric.update(saliency[rank::2], fixations[rank::2])
        results[name] = metric.compute().item()
    (folder / f"{rank}.json").write_text(json.dumps(results))
    from processes import leave

    leave()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main(Path(sys.argv[1]))
