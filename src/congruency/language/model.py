"""A byte-level GPT: pre-norm blocks of causal attention and an MLP, with learned positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency._validate import check_whole

__all__ = ["BYTES", "GPT", "PRESETS", "Shape"]

BYTES = 256
_DEVIATION = 0.02  # standard deviation of initial weights


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a GPT: width, numbers of layers and attention heads, and context length in bytes."""

    width: int
    layers: int
    heads: int
    context: int

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "context"):
            check_whole(name, getattr(self, name), least=1)
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of the heads, got {self.width} and {self.heads}")


PRESETS: dict[str, Shape] = {
    "tiny": Shape(width=64, layers=2, heads=2, context=64),
    "medium": Shape(width=128, layers=3, heads=4, context=128),
    "10m": Shape(width=384, layers=6, heads=6, context=256),
    "100m": Shape(width=768, layers=14, heads=12, context=512),
}
"""Shapes by name, with 0.1, 0.6, 10.8 and 99.7 million parameters."""


class GPT(nn.Module):
    """A byte-level GPT, which predicts the next byte at every position.

    Args:
        shape: Size of the network.
        tied: Share the weights of embedding and last layer.

    Shape:
        - Input: bytes as int64, (B, T) with T at most the context.
        - Output: logits, (B, T, 256).

    Examples:
        >>> from congruency.language import GPT, PRESETS
        >>> GPT(PRESETS["tiny"])(torch.tensor([list(b"def f(")])).shape
        torch.Size([1, 6, 256])
    """

    def __init__(self, shape: Shape, *, tied: bool = True) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(BYTES, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, BYTES, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=_DEVIATION)
        for block in self.blocks:
            assert isinstance(block, _Block)
            for layer in (block.project, block.contract):  # keeps the sum over the blocks of order one
                nn.init.normal_(layer.weight, std=_DEVIATION / math.sqrt(2 * shape.layers))
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.shape.context:
            raise ValueError(f"the input has {length} bytes, more than the context of {self.shape.context}")
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class _Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``; without biases."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # (B, heads, T, width / heads) each
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        added: Tensor = self.contract(functional.gelu(self.expand(self.mlp_norm(x))))
        return x + added
