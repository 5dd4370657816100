"""What was measured of a machine itself: facts that stand where a price would assume something.

`autotune doctor --measure` makes them, `probe.machine` keeps them, an offer that is this machine
carries them (`Device.rates`, `Host.loader`), and the components of the bill read them there.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from autotune.frozen import dataclass

FactName = Literal[
    "matmul", "attention", "new_size", "elementwise", "issue_forward", "issue_backward",
    "host_thread", "copy_to_device", "copy_peer", "disk_write", "loader_row", "loader_token",
    "loader_workers",
]  # fmt: skip
FACT_NAMES: tuple[FactName, ...] = get_args(FactName)


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure with the log standard deviation that its repetitions show.

    matmul [FLOP/s] of a product of `shape` (rows, outputs, inputs) in `precision`; attention
    [FLOP/s] of causal attention, forward and backward, of `shape` (heads, length, width of a head),
    the masked half not counted; new_size [s] that
    a product in 16 bits takes longer when its sizes are met for the first time; elementwise,
    copy_to_device, copy_peer (between the devices `shape`) and disk_write [bytes/s]; issue_forward
    and issue_backward: [s] of the host for a kernel; host_thread: [s] of one thread for a thousand
    rounds of plain Python; loader_row, loader_token: [s] of one loading process; loader_workers:
    rows a second of two processes over those of none. disturbed: what others took meanwhile.
    """

    name: FactName
    value: float
    log_sd: float
    samples: int
    precision: str = ""
    shape: tuple[int, ...] = ()
    disturbed: tuple[str, ...] = ()

    @property
    def what(self) -> tuple[str, str, tuple[int, ...]]:
        """What it is a figure of: a later one of the same takes its place."""
        return self.name, self.precision, self.shape


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product C[m, n] = A[m, k] B[k, n] and the [FLOP/s] it ran at."""

    precision: str
    m: int
    n: int
    k: int
    flop_per_s: float

    @property
    def side(self) -> float:
        """The geometric mean of the matrix's two sides."""
        return math.sqrt(self.n * self.k)


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention with heads of a width, and the [FLOP/s] of its forward and backward."""

    precision: str
    head_dim: int
    flop_per_s: float


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What a device was measured at on its own host; 0 and empty: not measured.

    log_sd: of what was measured, by its repetitions.
    """

    products: tuple[Product, ...] = ()
    elementwise_bytes_per_s: float = 0.0
    issue_forward_s: float = 0.0  # of a kernel
    issue_backward_s: float = 0.0
    new_size_s: float = 0.0
    attention: tuple[Attention, ...] = ()
    log_sd: float = 0.0

    def best_flop_per_s(self, precision: str) -> float:
        """[FLOP/s] of the fastest product in a compute dtype; 0: none was measured."""
        return max((p.flop_per_s for p in self.products if p.precision == precision), default=0.0)


@dataclass(frozen=True, slots=True)
class LoaderRates:
    """[s] that one loading process was measured to need for a row, and for each token of it."""

    row_s: float
    token_s: float


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Everything that was measured of one machine. measured_on: the newest date of a fact."""

    facts: tuple[Fact, ...]
    measured_on: str  # ISO date
    software: tuple[tuple[str, str], ...]
    threads: int
    folder: str  # whose disk was written to

    def value(self, name: FactName) -> float | None:
        """The figure of a name that has one; the least of several."""
        return min((fact.value for fact in self.facts if fact.name == name), default=None)

    @property
    def rates(self) -> DeviceRates | None:
        """What is the device's; None where nothing of it was measured."""
        of_device = {"matmul", "attention", "new_size", "elementwise"}
        own = [f for f in self.facts if f.name in of_device]
        own += [f for f in self.facts if f.name.startswith("issue_")]
        if not own:
            return None
        products = tuple(
            Product(f.precision, f.shape[0], f.shape[1], f.shape[2], f.value)
            for f in own
            if f.name == "matmul"
        )  # fmt: skip
        return DeviceRates(
            products,
            self.value("elementwise") or 0.0,
            self.value("issue_forward") or 0.0,
            self.value("issue_backward") or 0.0,
            self.value("new_size") or 0.0,
            tuple(
                Attention(f.precision, f.shape[2], f.value) for f in own if f.name == "attention"
            ),
            max(fact.log_sd for fact in own),
        )

    @property
    def loader(self) -> LoaderRates | None:
        """What is the loader's; None where it was not measured."""
        row_s, token_s = self.value("loader_row"), self.value("loader_token")
        return None if row_s is None or token_s is None else LoaderRates(row_s, token_s)

    @property
    def disturbed(self) -> tuple[str, ...]:
        """What others took of the machine while any of it was measured, each once."""
        return tuple(dict.fromkeys(why for fact in self.facts for why in fact.disturbed))
