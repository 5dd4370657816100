"""What an op returns, remembered: a layer repeats the ops of the one before it, shape for shape.

The meta kernels of PyTorch compute every output's shape anew, most of them in Python. For an op
whose outputs are new tensors, the same arguments give outputs of the same shape, so they are made
directly. Ops that write to an argument or return a view of one always run.
"""

from __future__ import annotations

from typing import Any

import torch

MOST_REMEMBERED = 100_000
_PLAIN = (int, float, bool, str, torch.dtype, torch.layout, torch.device, torch.memory_format)


class _Unknown(Exception):  # noqa: N818 - an answer, not a defect
    """An argument whose effect on the shapes is not known."""


class Shapes:
    """Outputs by op and arguments, kept for the life of the process."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._outputs: dict[Any, Any] = {}
        self._fresh: dict[Any, bool] = {}  # ops that neither write nor return views

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The op's result, computed only if it is not known."""
        fresh = self._fresh.get(func)
        if fresh is None:
            fresh = self._fresh[func] = _makes_new(func)
        if not fresh:
            return func(*args, **kwargs)
        try:
            key = (func, _spec(args), tuple((name, _spec(kwargs[name])) for name in kwargs))
            known = self._outputs.get(key)
        except _Unknown:
            return func(*args, **kwargs)
        if known is not None:
            return _made(known)
        result = func(*args, **kwargs)
        if len(self._outputs) < MOST_REMEMBERED and not _shares(result, (args, kwargs)):
            try:
                self._outputs[key] = _outputs(result)
            except _Unknown:
                self._fresh[func] = False
        return result


def _makes_new(func: Any) -> bool:
    schema = func._schema  # noqa: SLF001 - PyTorch's own tools read it the same way
    return not schema.is_mutable and all(item.alias_info is None for item in schema.returns)


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            raise _Unknown
        return value.shape, value.stride(), value.dtype
    if value is None or isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, list | tuple):
        return tuple(_spec(item) for item in value)
    raise _Unknown


def _outputs(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return _spec(result)
    if isinstance(result, list | tuple):
        return [_outputs(item) for item in result]
    if result is None:
        return "none"
    raise _Unknown


def _made(known: Any) -> Any:
    if isinstance(known, list):
        return tuple(_made(item) for item in known)
    if known == "none":
        return None
    size, stride, dtype = known
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _storages(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage()._cdata}  # noqa: SLF001 - the storage's identity
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return set().union(*map(_storages, value))
    return set()


def _shares(result: Any, given: Any) -> bool:
    """Whether an output lives in an argument's storage, whatever the schema says."""
    return bool(_storages(result) & _storages(given))
