import pickle

import pytest
import torch

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.models import create
from congruency.datasets import SETS
from congruency.studies import cost
from congruency.studies.classification import tables
from congruency.studies.image_tables import named_study

CIFAR = [
    "ResNeXt-29 SGD",
    "ResNeXt-29 SGD GEM",
    "ResNeXt-29 SGD DCL-inf-1",
    "DenseNet-100-12 SGD",
    "DenseNet-100-12 SGD GEM",
    "DenseNet-100-12 SGD DCL-90-1",
    "EfficientNet-B1 SGD",
    "EfficientNet-B1 SGD GEM",
    "EfficientNet-B1 SGD DCL-5-1",
]
TINY = [
    "ResNet-101 SGD",
    "ResNet-101 SGD GEM",
    "ResNet-101 SGD DCL-60-1",
    "DenseNet-169-32 SGD",
    "DenseNet-169-32 SGD GEM",
    "DenseNet-169-32 SGD DCL-50-1",
    "EfficientNet-B1 SGD",
    "EfficientNet-B1 SGD GEM",
    "EfficientNet-B1 SGD DCL-8-1",
]
PAPER = {
    "cifar": CIFAR,
    "tiny_imagenet": TINY,
    "imagenet": ["ResNet-50 (original)", "ResNet-50 (reproduced)", "ResNet-50 DCL"],
    "from_scratch": ["ResNet-101 SGD", "ResNet-101 SGD GEM", "ResNet-101 SGD DCL"],
    "cost": ["baseline (ResNet-101 / ResNet-50 / ResNet-50)", "GEM", "DCL"],
    "cost_window": ["DCL"],
    "cost_references": ["DCL"],
}
COLUMNS = {
    "cifar": ["CIFAR-10", "CIFAR-100"],
    "tiny_imagenet": ["Top-1 error", "Top-5 error"],
    "imagenet": ["Top-1 error", "Top-5 error"],
    "from_scratch": ["Top-1 TFS", "Top-5 TFS", "Top-1 FT", "Top-5 FT"],
    "cost": [f"{data} {unit}" for data in ("Tiny ImageNet", "SALICON", "ImageNet") for unit in ("params", "ms")],
    "cost_window": ["10", "20", "30", "40", "50"],
    "cost_references": ["1", "5", "10", "15", "20"],
}
STUDIES = {name: table() for name, table in {**tables.TABLES, **cost.TABLES}.items()}
JOBS = [(name, row, job) for name, study in STUDIES.items() for row in study.rows for job in row.jobs]


def printed(row):
    """The name of a row as the paper writes it: without the mode."""
    for mode in tables.MODES:
        row = row.removesuffix(f", {mode}")
    return row


def find(table, row):
    """The rows that stand for one of the paper: of DCL both modes."""
    return [each for each in STUDIES[table].rows if printed(each.name) == row]


def test_the_tables_and_rows_are_the_papers():
    names = {table: list(dict.fromkeys(printed(row.name) for row in study.rows)) for table, study in STUDIES.items()}
    assert names == PAPER


@pytest.mark.parametrize("table", PAPER)
def test_every_row_reports_every_column(table):
    for row in STUDIES[table].rows:
        assert list(row.paper) == COLUMNS[table] == [column.key for column in STUDIES[table].columns]
        if row.jobs:
            assert [column for job in row.jobs for column in job.columns] == COLUMNS[table]
        assert len({job.label for job in row.jobs}) == len(row.jobs)


@pytest.mark.parametrize(("table", "row"), [(table, row) for table, names in PAPER.items() for row in names])
def test_the_name_of_a_row_says_its_method(table, row):
    words = row.split()
    method = "gem" if "GEM" in words else "dcl" if any(word.startswith("DCL") for word in words) else "baseline"
    found = find(table, row)
    assert len(found) == (2 if method == "dcl" else 1)
    for job in (job for each in found for job in each.jobs):
        assert job.method.name == method
        if words[-1].startswith("DCL-"):
            _, window, references = words[-1].split("-")
            assert job.method.window == (None if window == "inf" else int(window))
            assert job.method.references == int(references)


def test_the_papers_numbers():
    for row in find("cifar", "ResNeXt-29 SGD DCL-inf-1"):
        assert row.paper == {"CIFAR-10": 3.33, "CIFAR-100": 17.02}
    assert find("tiny_imagenet", "DenseNet-169-32 SGD DCL-50-1")[0].paper == {"Top-1 error": 19.55, "Top-5 error": 6.09}
    assert find("imagenet", "ResNet-50 DCL")[0].paper["Top-1 error"] == (24.09, 0.03)
    references, window = find("cost_references", "DCL")[0], find("cost_window", "DCL")[0]
    assert references.paper["20"] == 54
    assert [job.method.references for job in references.jobs] == [1, 5, 10, 15, 20]
    assert [job.method.window for job in window.jobs] == [10, 20, 30, 40, 50]
    scratch, tuned = find("from_scratch", "ResNet-101 SGD DCL")[0].jobs
    assert (scratch.setup.pretrained, tuned.setup.pretrained) == (None, True)
    paper = find("from_scratch", "ResNet-101 SGD DCL")[0].paper
    assert (paper["Top-1 TFS"], paper["Top-5 FT"]) == (67.56, 4.50)


@pytest.mark.parametrize("table", tables.TABLES)
def test_the_papers_hyperparameters(table):
    for row in STUDIES[table].rows:
        for job in row.jobs:
            setup, data = job.setup, job.data.name
            assert (setup.momentum, setup.decay, setup.schedule) == (0.9, 0.1, "steps")
            if data.startswith("cifar"):
                assert (setup.learning_rate, setup.weight_decay, setup.epochs) == (0.1, 5e-4, 300)
                assert (setup.milestones, setup.batch_size) == ((150, 225), 128)
                assert setup.augmentation.size == (240 if setup.pretrained else AUGMENTATIONS[data].size)
            elif data == "tiny_imagenet":
                assert (setup.learning_rate, setup.weight_decay, setup.epochs) == (0.001, 1e-4, 30)
                assert (setup.milestones, setup.batch_size, setup.augmentation.size) == ((10, 20), 64, 224)
            else:
                assert (setup.model, setup.batch_size, setup.augmentation.size) == ("resnet50", 512, 224)
                assert job.method.window == (5 if job.method.name == "dcl" else None)


def test_the_sets_and_networks_exist():
    assert {job.data.name for _, _, job in JOBS} - {"SALICON"} <= set(SETS)
    with torch.device("meta"):
        for name in sorted({job.setup.model for _, _, job in JOBS}):
            create(name, 10, shape=(3, 64, 64))


def test_jobs_travel_to_other_processes():
    for _, _, job in JOBS:
        assert pickle.loads(pickle.dumps(job)) == job


def test_there_is_no_other_table():
    with pytest.raises(ValueError, match="there is no table 'cfar' of classification; the tables are cifar, "):
        named_study("cfar")
