"""Layers so small that what they take is the host's work, and how many kernels one has."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS, WIDTH, HEADS = 8, 64, 4


class Block(nn.Module):
    """A layer as the models here have it: two norms, attention with rotation, a gated network."""

    def __init__(self) -> None:
        """Small matrices: what it takes is the host's work."""
        super().__init__()
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.qkvo = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gated = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] -> the same."""
        own = self.norm(x, 0)
        q, k, v = (self.heads(self.qkvo[i](own)) for i in range(3))
        mixed = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.qkvo[3](mixed.transpose(1, 2).reshape(x.shape))
        own = self.norm(x, 1)
        gate, up, down = self.gated
        added: torch.Tensor = down(functional.silu(gate(own)) * up(own))
        return x + added

    def norm(self, x: torch.Tensor, which: int) -> torch.Tensor:
        """Divided by the root of the mean square."""
        own: torch.Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.norms[which] * own

    @staticmethod
    def heads(x: torch.Tensor) -> torch.Tensor:
        """[batch, heads, tokens, width of a head]."""
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def turned(x: torch.Tensor) -> torch.Tensor:
    """A rotation of halves, as rotary embeddings make one."""
    half = x.shape[-1] // 2
    return x * 0.5 + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * 0.5


class _Count(TorchDispatchMode):
    """Counts operations that compute something; views are none."""

    VIEWS = ("view", "transpose", "slice", "expand", "t.", "detach", "alias", "unsqueeze", "select")

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        name = str(func).partition("aten.")[2]
        self.seen += not name.lstrip("_").startswith(self.VIEWS)
        return func(*args, **(kwargs or {}))


def counted(layers: int) -> tuple[int, int]:
    """Kernels of the forward and of the backward of so many layers."""
    network = nn.Sequential(*(Block() for _ in range(layers)))
    with _Count() as ahead:
        loss = network(torch.randn(1, TOKENS, WIDTH)).sum()
    with _Count() as back:
        loss.backward()
    return ahead.seen, back.seen
