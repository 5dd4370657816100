"""Bytes of live tensors on a processor, which has no allocator that counts them.

Resident memory is no substitute: the C library keeps what was freed, by up to a few per cent and
differently each time. A dispatch mode sees the outputs of every operation; a storage counts once
and leaves when nothing holds it any more. It costs microseconds an operation, so it is active only
in the steps that are not timed.

Does not cover: memory that a kernel takes and gives back inside one operation; torch.compile, which
a dispatch mode would switch off; several processes, whose sharded tensors hide their storages.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable


class LiveBytes(TorchDispatchMode):
    """Counts storages while it is entered; `peak` is the most since the last reset."""

    def __init__(self) -> None:
        """Nothing is known yet: `know` what exists before entering."""
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None  # noqa: ANN401
    ) -> Any:  # fmt: skip  # noqa: ANN401
        """Run the operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        self.know(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of tensors, unless they are counted already."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001 - the storage's identity; torch's tracker uses it
            if key in self._known:
                continue
            size = storage.nbytes()
            self._known[key] = size
            self.live += size
            weakref.finalize(storage, self._forget, key)
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._known.pop(key, 0)

    def reset(self) -> None:
        """The peak counts from now."""
        self.peak = self.live
