"""What a component gives, of which some may be priced only when it is read.

How far a step may be off takes longer to price than the step, and is asked of few of the candidates
that are priced: of what is shown, and of all where a limit must be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray, Outputs


class Later(dict[str, "FloatArray"]):
    """Outputs of which some are priced once one of them, or all there are, is read."""

    def __init__(self, now: Outputs, names: Collection[str], price: Callable[[], Outputs]) -> None:
        """names: what `price` will give."""
        super().__init__(now)
        self._names, self._price = names, price

    def __missing__(self, name: str) -> FloatArray:
        if name not in self._names:
            raise KeyError(name)
        self._settle()
        return self[name]

    def _settle(self) -> None:
        if self._names:
            self._names, made = (), self._price()
            for array in made.values():
                array.flags.writeable = False
            self.update(made)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._names

    def __iter__(self) -> Iterator[str]:
        self._settle()
        return super().__iter__()

    def keys(self) -> Any:  # noqa: ANN401, D102 - a dict's
        self._settle()
        return super().keys()

    def values(self) -> Any:  # noqa: ANN401, D102
        self._settle()
        return super().values()

    def items(self) -> Any:  # noqa: ANN401, D102
        self._settle()
        return super().items()


def split(outputs: Outputs) -> tuple[Outputs, Collection[str]]:
    """What is priced, and the names of what is not."""
    now = dict(dict.items(outputs))
    return now, outputs._names if isinstance(outputs, Later) else ()  # noqa: SLF001 - of this file


def taken(outputs: Outputs, at: NDArray[np.intp]) -> Outputs:
    """[at] the outputs of some rows, read-only. What is priced later stays so."""
    now, later = split(outputs)
    found = {name: _some(own, at) for name, own in now.items()}
    if not later:
        return found
    return Later(found, later, lambda: {name: outputs[name][at] for name in later})


def _some(array: FloatArray, at: NDArray[np.intp]) -> FloatArray:
    found = array[at]
    found.flags.writeable = False
    return found


def joined(rows: int, parts: Sequence[tuple[BoolArray, Outputs]]) -> Outputs:
    """[rows] the outputs of parts, each of its own rows. What is priced later stays so."""
    apart = [(here, *split(own)) for here, own in parts]
    later = dict.fromkeys(name for _, _, names in apart for name in names)

    def rest() -> Outputs:
        return _joined(rows, [(here, {n: own[n] for n in later}) for here, own in parts])

    now = _joined(rows, [(here, own) for here, own, _ in apart])
    return Later(now, later, rest) if later else now


def _joined(rows: int, parts: Sequence[tuple[BoolArray, Outputs]]) -> Outputs:
    found: Outputs = {}
    for here, outputs in parts:
        for name, own in outputs.items():
            found.setdefault(name, np.zeros(rows))[here] = own
    return found
