"""The GPT: causal, of the sizes it is said to have, tied or not, initialised as described."""

import doctest
import math

import pytest
import torch
from language_toy import SHAPE

import congruency
from congruency.language import GPT, PRESETS, Shape, model


@pytest.mark.parametrize("tied", [True, False])
def test_a_byte_changes_no_earlier_logit(tied, device):
    gpt = GPT(SHAPE, tied=tied).to(device).eval()
    tokens = torch.randint(256, (3, SHAPE.context), device=device)
    before = gpt(tokens)
    for place in (0, 7, SHAPE.context - 1):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 256
        after = gpt(changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.allclose(after[:, place:], before[:, place:])


def test_a_shorter_input_has_the_same_logits():
    gpt = GPT(SHAPE)
    tokens = torch.randint(256, (2, SHAPE.context))
    torch.testing.assert_close(gpt(tokens[:, :5]), gpt(tokens)[:, :5])


def test_attention_is_what_its_equation_says():
    """One block by hand, head by head, with an explicit mask."""
    block = GPT(SHAPE).blocks[0]
    x = torch.randn(2, 5, SHAPE.width)
    q, k, v = block.queries_keys_values(block.attention_norm(x)).split(SHAPE.width, dim=-1)
    mask = torch.full((5, 5), -math.inf).triu(1)
    size = SHAPE.width // SHAPE.heads
    heads = []
    for i in range(SHAPE.heads):
        part = slice(i * size, (i + 1) * size)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(size) + mask
        heads.append(scores.softmax(-1) @ v[..., part])
    y = x + block.project(torch.cat(heads, -1))
    y = y + block.contract(torch.nn.functional.gelu(block.expand(block.mlp_norm(y))))
    torch.testing.assert_close(block(x), y)


@pytest.mark.parametrize(("name", "count"), [("tiny", 119_424), ("10m", 10_823_424), ("100m", 99_724_800)])
def test_parameters(name, count):
    shape = PRESETS[name]
    blocks = shape.layers * (12 * shape.width**2 + 4 * shape.width)
    assert count == blocks + (256 + shape.context) * shape.width + 2 * shape.width
    with torch.device("meta"):
        assert sum(p.numel() for p in GPT(shape).parameters()) == count
        assert sum(p.numel() for p in GPT(shape, tied=False).parameters()) == count + 256 * shape.width


def test_tied_weights_are_one_tensor():
    tied, untied = GPT(SHAPE), GPT(SHAPE, tied=False)
    assert tied.head.weight is tied.tokens.weight
    assert untied.head.weight is not untied.tokens.weight
    assert congruency.head(tied) is tied.head


def test_residual_projections_start_smaller():
    gpt = GPT(Shape(width=128, layers=8, heads=4, context=8))
    for block in gpt.blocks:
        assert block.expand.weight.std().item() == pytest.approx(0.02, rel=0.05)
        for layer in (block.project, block.contract):
            assert layer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    loss = torch.nn.functional.cross_entropy(gpt(torch.randint(256, (4, 8))).flatten(0, 1), torch.randint(256, (32,)))
    assert loss.item() == pytest.approx(math.log(256), abs=0.2)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="width must be a multiple of the heads, got 10 and 3"):
        Shape(width=10, layers=1, heads=3, context=4)
    with pytest.raises(ValueError, match="layers must be a whole number of at least 1, got 0"):
        Shape(width=8, layers=0, heads=1, context=4)
    with pytest.raises(ValueError, match="the input has 17 bytes, more than the context of 16"):
        GPT(SHAPE)(torch.zeros(1, 17, dtype=torch.long))


def test_examples_run():
    assert doctest.testmod(model, extraglobs={"torch": torch}) == (0, 2)
