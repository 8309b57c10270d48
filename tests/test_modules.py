"""Finding the last layer, with stand-ins that have the interfaces of timm and torchvision."""

import pytest
import torch
from torch import nn

from congruency.modules import head, unwrap


class TimmLike(nn.Module):
    """Answers ``get_classifier()``; its head is not the layer defined last."""

    def __init__(self, classifier) -> None:
        super().__init__()
        self.classifier = nn.ModuleList(classifier) if isinstance(classifier, tuple | list) else classifier
        self.answer = classifier
        self.late = nn.Linear(2, 2)

    def get_classifier(self):
        return self.answer


class TorchvisionLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.fc = nn.Linear(4, 10)
        self.dropout = nn.Dropout()


def test_asks_a_model_that_names_its_classifier():
    model = TimmLike(nn.Linear(3, 5))
    assert head(model) is model.classifier


def test_several_classifiers_come_as_one_module():
    first, second = nn.Linear(3, 5), nn.Linear(3, 5)
    for answer in ((first, second), [first, second], nn.ModuleList([first, second])):
        found = head(TimmLike(answer))
        assert [id(p) for p in found.parameters()] == [id(p) for p in (*first.parameters(), *second.parameters())]


def test_identity_among_classifiers_is_left_out():
    layer = nn.Linear(3, 5)
    assert head(TimmLike((layer, nn.Identity()))) is layer


@pytest.mark.parametrize("answer", [nn.Identity(), None, (nn.Identity(), nn.Identity())])
def test_model_without_classifier_is_refused(answer):
    with pytest.raises(ValueError, match=r"TimmLike\.get_classifier\(\) gives .* num_classes > 0"):
        head(TimmLike(answer))


def test_last_linear_in_definition_order():
    model = TorchvisionLike()
    assert head(model) is model.fc


@pytest.mark.parametrize("last", [nn.Conv2d(4, 1, 1), nn.ConvTranspose2d(4, 1, 2), nn.Conv1d(4, 2, 3)])
def test_last_convolution(last):
    assert head(nn.Sequential(nn.Linear(2, 2), nn.Sequential(last, nn.ReLU()), nn.BatchNorm2d(1))) is last


def test_a_single_layer_is_its_own_head():
    layer = nn.Linear(2, 2)
    assert head(layer) is layer


def test_parametrised_layer_owns_its_parameters():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert head(nn.Sequential(nn.Linear(2, 2), layer)) is layer


def test_sees_through_compile_and_data_parallel():
    for model in (TorchvisionLike(), TimmLike(nn.Linear(3, 5))):
        for wrapped in (torch.compile(model), nn.DataParallel(model), nn.DataParallel(torch.compile(model))):
            assert unwrap(wrapped) is model
            assert head(wrapped) is head(model)


def test_sees_through_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = TorchvisionLike()
        assert head(nn.parallel.DistributedDataParallel(model)) is model.fc
    finally:
        torch.distributed.destroy_process_group()


def test_a_part_called_module_is_no_wrapper():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)
            self.fc = nn.Linear(2, 3)

    model = Net()
    assert unwrap(model) is model
    assert head(model) is model.fc


def test_model_without_layers_is_refused():
    with pytest.raises(ValueError, match=r"Sequential has no nn\.Linear and no convolution with parameters"):
        head(nn.Sequential(nn.ReLU(), nn.LayerNorm(3)))
