"""The paper's number for a run, from the table and row that its record names."""

import pytest

from congruency.studies.paper import printed


@pytest.mark.parametrize(
    ("place", "tuned", "expected"),
    [
        (("cifar", "ResNeXt-29 SGD", "cifar100"), False, {"error": 17.3}),
        (("cifar", "ResNeXt-29 SGD DCL-inf-1, anchor, margin 0.5", "cifar10"), False, {"error": 3.33}),
        (("cifar", "ResNeXt-29 SGD DCL-inf-1, concentrate, margin 0", "cifar10"), False, {"error": 3.33}),
        (("tiny_imagenet", "ResNet-101 SGD GEM", "tiny_imagenet"), True, {"error": 21.78, "top5_error": 7.21}),
        (("from_scratch", "ResNet-101 SGD", "tiny_imagenet"), False, {"error": 68.21, "top5_error": 42.72}),
        (("from_scratch", "ResNet-101 SGD", "tiny_imagenet"), True, {"error": 17.34, "top5_error": 4.82}),
        (("imagenet", "ResNet-50 DCL, anchor, margin 0.5", "imagenet"), False,
         {"error": (24.09, 0.03), "top5_error": (7.23, 0.02)}),
        (("osie", "ResNet-50 Adam DCL-inf-1 anchor", "OSIE"), False,
         {"NSS": (2.4108, 0.0063), "sAUC": (0.7613, 0.0007), "AUC": (0.8442, 0.0008), "CC": (0.7617, 0.0007)}),
        (("cifar", "ResNeXt-29 SGD", "digits"), False, {}),
        (("cifar10_grid", "baseline", "cifar10"), False, {}),
        (("cost", "GEM", "tiny_imagenet"), False, {}),
        (("cifar", "no such row", "cifar10"), False, {}),
        ((None, None, "cifar10"), False, {}),
    ],
)  # fmt: skip
def test_numbers_of_the_tables(place, tuned, expected):
    assert printed(*place, fine_tuned=tuned) == expected
