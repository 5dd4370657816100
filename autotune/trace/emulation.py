"""Making the meta device behave as CUDA does where composite ops branch on the device.

- sdpa takes the math path on meta; here it is the flash (or efficient) op CUDA would choose. Key
  heads that only broadcast over the query heads have no fused kernel: the math path is right.
- dropout keeps noise in the input's dtype on meta; CUDA keeps a one-byte mask.
- autocast refuses meta, switched off as well as on; a function mode casts as CUDA's policy lists
  do, with the cache of cast trainable leaves.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

aten = torch.ops.aten


_math = functional.scaled_dot_product_attention  # what torch does on meta


def _flash(query: Any, key: Any, value: Any, dropout: float, *, causal: bool) -> Any:
    return aten._scaled_dot_product_flash_attention(  # noqa: SLF001 - the op's name
        query, key, value, dropout, causal
    )[0]


def _efficient(query: Any, key: Any, value: Any, dropout: float, mask: Any, *, causal: bool) -> Any:
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, value = (x.repeat_interleave(repeat, dim=1) for x in (key, value))
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype)
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return aten._scaled_dot_product_efficient_attention(  # noqa: SLF001 - the op's name
        query,
        key,
        value,
        mask,
        True,
        dropout,
        causal,
    )[0]


def _attention(  # noqa: PLR0913, PLR0917 - torch's own signature
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    if key.shape[1] != query.shape[1] and not enable_gqa:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    for mode in _policies():  # autocast runs this kernel in the low dtype
        query, key, value, attn_mask = (mode.low(x) for x in (query, key, value, attn_mask))
    alike = query.shape[-1] == value.shape[-1]  # flash attention takes no values of another width
    if attn_mask is None and alike and query.dtype in {torch.float16, torch.bfloat16}:
        return _flash(query, key, value, dropout_p, causal=is_causal)
    return _efficient(query, key, value, dropout_p, attn_mask, causal=is_causal)


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return aten.native_dropout(x, p, training)[0] if training and p > 0 else x


@contextlib.contextmanager
def cuda_like() -> Iterator[None]:
    """Patch the composites that would branch differently on CUDA; restore them on leaving."""
    sdpa, dropout = functional.scaled_dot_product_attention, functional.dropout
    autocast = torch.autocast

    def region(device_type: str, *args: Any, enabled: bool = True, **kwargs: Any) -> Any:
        if device_type != "meta":
            return autocast(device_type, *args, enabled=enabled, **kwargs)
        return contextlib.nullcontext() if enabled else _suspended()

    functional.scaled_dot_product_attention = _attention
    functional.dropout = _dropout  # type: ignore[assignment]  # as torch names its arguments
    torch.autocast = region  # a factory of the same contexts
    try:
        yield
    finally:
        torch.autocast = autocast
        functional.scaled_dot_product_attention = sdpa
        functional.dropout = dropout


# Source: PyTorch docs, "CUDA Op-Specific Behavior" of automatic mixed precision.
_LOW = {
    functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm,
    torch.Tensor.bmm, torch.mm, torch.Tensor.mm, torch.addmm, torch.Tensor.addmm, torch.baddbmm,
    torch.Tensor.baddbmm,
    torch.einsum, functional.conv1d,
}  # fmt: skip
_FULL = {
    torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.rsqrt, torch.Tensor.rsqrt, torch.exp,
    torch.Tensor.exp, torch.log, torch.Tensor.log, functional.layer_norm, functional.nll_loss,
    functional.cross_entropy, torch.Tensor.sum, torch.sum, torch.cumsum, torch.Tensor.cumsum,
    torch.logsumexp, functional.softplus, torch.expm1, torch.Tensor.expm1,
}  # fmt: skip
_active: list[Autocast | None] = []  # the policies that are on, innermost last; None: switched off
_SOFTMAX = {functional.softmax, functional.log_softmax, torch.softmax, torch.Tensor.softmax}


def _policies() -> list[Autocast]:
    return [mode for mode in _active[-1:] if mode is not None]


@contextlib.contextmanager
def _suspended() -> Iterator[None]:
    """What `torch.autocast(..., enabled=False)` does: ops take their inputs as they are."""
    _active.append(None)
    try:
        yield
    finally:
        _active.pop()


class Autocast(TorchFunctionMode):
    """CUDA's autocast policy for meta tensors; casts of trainable fp32 leaves are cached."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Cast matrix products to `dtype`."""
        super().__init__()
        self.dtype = dtype
        self.caching = True
        # By identity; the tensor is kept, so that no other takes its identity over.
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __enter__(self) -> Self:
        """Turn the policy on, for patched composites too."""
        _active.append(self)
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Turn the policy off."""
        super().__exit__(kind, error, trace)
        _active.pop()

    def forget(self) -> None:
        """Drop the cached casts, as leaving the autocast region does."""
        self._cache.clear()

    def low(self, value: Any) -> Any:
        """A floating tensor in the low dtype; anything else as it is."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.dtype == self.dtype:
            return value
        # Source: PyTorch aten/src/ATen/autocast_mode.cpp, cached_cast.
        trained = value.is_leaf and value.requires_grad and value.dtype == torch.float32
        if not self.caching or not trained or value._is_view():  # noqa: SLF001 - as PyTorch asks
            return value.to(self.dtype)
        if id(value) not in self._cache:
            self._cache[id(value)] = (value, value.to(self.dtype))
        return self._cache[id(value)][1]

    @staticmethod
    def _full(value: Any) -> Any:
        low = isinstance(value, torch.Tensor) and value.dtype in {torch.float16, torch.bfloat16}
        return value.float() if low else value

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Cast the arguments as the policy says, then run the function."""
        kwargs = kwargs or {}
        if not _policies():
            return func(*args, **kwargs)
        if func in _LOW:
            args = tuple(self.low(a) for a in args)
            kwargs = {k: self.low(v) for k, v in kwargs.items()}
        elif func in _FULL or (func in _SOFTMAX and kwargs.get("dtype") is None):
            args = tuple(self._full(a) for a in args)
        return func(*args, **kwargs)
