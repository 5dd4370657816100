"""Live bytes of every tensor storage during a traced step, by what they hold.

A dispatch mode sees the outputs of every op; each new storage counts once, rounded up as the CUDA
caching allocator rounds, and leaves when Python drops it. The graph itself keeps autograd's saved
tensors alive, so lifetimes are those of a real run.

What an op returns is remembered (`Op`): a layer repeats the ops of the one before it, shape for
shape. The meta kernels of PyTorch compute every output's shape anew, most of them in Python. For an
op whose outputs are new tensors, the same arguments give outputs of the same shape, so they are
made directly. Ops that write to an argument or return a view of one always run.

Covers: everything that allocates through the dispatcher.
Does not cover: workspaces inside kernels (added per op by `workspace_bytes`), memory outside torch.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.trace.allocator import MIN_BLOCK

WORKSPACE = -1  # key of memory that lives and dies inside one op
MOST_REMEMBERED = 10_000  # of one op
_PLAIN = (int, float, bool, str, torch.dtype, torch.layout, torch.device, torch.memory_format)
HOLDS = ("weights", "adapters", "gradients", "optimizer", "logits", "activations", "workspace")


class _Unknown(Exception):  # noqa: N818 - an answer, not a defect
    """An argument whose effect on the shapes is not known."""


class Op:
    """An op that was met: its name, and its outputs by its arguments."""

    def __init__(self, func: Any) -> None:
        """Nothing is remembered yet, and never is of an op that writes or returns views."""
        self.name = str(func).removeprefix("aten.").removesuffix(".default")
        self._func = func
        self._outputs: dict[Any, Any] | None = {} if _makes_new(func) else None

    def run(self, args: Any, kwargs: Any) -> Any:
        """The op's result, computed only if it is not known."""
        if self._outputs is None:
            return self._func(*args, **kwargs)
        try:
            key = (_spec(args), _spec(tuple(kwargs.items())) if kwargs else ())
            known = self._outputs.get(key)
        except _Unknown:
            return self._func(*args, **kwargs)
        if known is not None:
            return _made(known)
        result = self._func(*args, **kwargs)
        if len(self._outputs) < MOST_REMEMBERED and not _shares(result, (args, kwargs)):
            try:
                self._outputs[key] = _outputs(result)
            except _Unknown:
                self._outputs = None
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
        return tuple([_spec(item) for item in value])
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


def rounded(size: int) -> int:
    """[bytes] a tensor's size as the caching allocator hands it out."""
    return -(-size // MIN_BLOCK) * MIN_BLOCK


class Event(NamedTuple):
    """One allocation (+size) or free (-size) of a storage, in the order of the run. [bytes]."""

    key: int
    size: int
    step: int
    phase: str
    op: str


@dataclass(slots=True)
class Peak:
    """The largest live count seen at one (phase, op), and what it held. [bytes]."""

    total: int = -1
    parts: dict[str, int] = field(default_factory=dict)


class Tracker(TorchDispatchMode):
    """Counts live bytes; remembers the largest count per (phase, op)."""

    def __init__(self, vocab_size: int, *, padded: bool = False) -> None:
        """Start with nothing live. Tensors whose last axis is the vocabulary count as logits."""
        super().__init__()
        self.padded = padded
        self.live = dict.fromkeys(HOLDS, 0)
        self._total = 0  # of what is live
        self.phase, self.op, self.step = "load", "resident", 0
        self._stated = ""
        self.peaks: dict[tuple[str, str], Peak] = {}
        self.events: list[Event] | None = None  # None: not recorded
        self._vocab_size = vocab_size
        self._known: dict[int, tuple[int, str]] = {}
        self._drops: dict[int, weakref.ref[Any]] = {}  # what tells when a storage is dropped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so no op needs the switch that keeps the compiler out."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Run the op, count its new storages, and note the live bytes while it ran."""
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - the op's name
            return not self.padded  # a meta tensor's value: mask code asks "is nothing padded?"
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - no policy inside an op
            op = _ops.get(func)
            if op is None:
                op = _ops[func] = Op(func)
            result = op.run(args, kwargs or {})
            self.op = self._stated or op.name
            for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.count(leaf)
            self.note(workspace_bytes(func, args))
        return result

    def note(self, workspace: int = 0) -> None:
        """Remember the live bytes, and what the op uses inside, if they are the most so far."""
        total = self._total + workspace
        peak = self.peaks.get((self.phase, self.op))
        if peak is None:
            peak = self.peaks[self.phase, self.op] = Peak()
        if total > peak.total:
            peak.total = total
            peak.parts = {**self.live, "workspace": self.live["workspace"] + workspace}
        if workspace and self.events is not None:
            self.events += [self._event(WORKSPACE, workspace), self._event(WORKSPACE, -workspace)]

    def at(self, phase: str, op: str, step: int | None = None) -> None:
        """Say what runs next. With an op, ops inside it are not named until the next call."""
        self.phase, self.op, self._stated = phase, op, op
        self.step = self.step if step is None else step

    def _event(self, key: int, size: int) -> Event:
        return Event(key, size, self.step, self.phase, self.op)

    def count(self, tensor: torch.Tensor, holds: str | None = None) -> None:
        """Count a tensor's storage unless it is known; `holds` also renames a known one."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - the storage's identity; torch's own tracker uses it
        if key in self._known:
            if holds is not None:
                size, before = self._known[key]
                self.live[before] -= size
                self.live[holds] += size
                self._known[key] = (size, holds)
            return
        size = rounded(storage.nbytes())
        if holds is None:
            wide = tensor.dim() > 1 and tensor.shape[-1] == self._vocab_size
            holds = "logits" if wide else "activations"
        self._known[key] = (size, holds)
        self.live[holds] += size
        self._total += size
        if self.events is not None:
            self.events.append(self._event(key, size))
        self._drops[key] = weakref.ref(storage, partial(self._release, key))

    def _release(self, key: int, dropped: weakref.ref[Any]) -> None:
        if self._drops.get(key) is not dropped:
            return
        del self._drops[key]
        size, holds = self._known.pop(key)
        self.live[holds] -= size
        self._total -= size
        if self.events is not None:
            self.events.append(self._event(key, -size))


_ops: dict[Any, Op] = {}  # for the life of the process


def workspace_bytes(func: Any, args: Any) -> int:
    """[bytes] memory an op uses inside its kernel, invisible to the dispatcher.

    Flash attention's backward accumulates dQ in fp32 over 128-row blocks and, with grouped heads,
    writes dK and dV for every query head first.
    Source: derived from the flash-attention 2 backward (Dao 2023, arXiv 2307.08691, algorithm 2).
    """
    if func is not torch.ops.aten._scaled_dot_product_flash_attention_backward.default:  # noqa: SLF001
        return 0
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    padded = -(-rows // 128) * 128
    accumulator = 4 * batch * heads * padded * width
    expanded = 0 if key.shape[1] == heads else 2 * 2 * batch * heads * rows * width
    return int(accumulator + expanded)
