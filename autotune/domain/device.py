"""A GPU type (or a CPU, which is a device like any other), a host around it, and their own facts.

What was measured of a machine itself stands where a price would assume something: `autotune doctor
--measure` makes these facts, `probe.machine` keeps them, an offer that is this machine carries them
(`Device.rates`, `Host.loader`), and the components of the bill read them there.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, get_args

from autotune.domain.typed.machine import machine_label
from autotune.domain.units import HOUR_S
from autotune.frozen import LATER, dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

FactName = Literal[
    "matmul", "attention", "new_size", "elementwise", "issue_forward", "issue_backward",
    "host_thread", "copy_to_device", "copy_peer", "disk_write", "loader_row", "loader_token",
    "loader_workers",
]  # fmt: skip
FACT_NAMES: tuple[FactName, ...] = get_args(FactName)
OLD_DAYS = 90  # of a price: those of marketplaces have halved within two quarters
# Compute capability from which a device has: bf16 from Ampere on; flash attention 2 likewise
# (flash-attention README: Ampere, Ada, Hopper).
BF16_CAPABILITY = FLASH_CAPABILITY = 8.0
HOPPER = 9  # flash-attention 3 README: H100 and H800, and what else has capability 9
INT8_CAPABILITY = 7.5  # bitsandbytes installation guide: LLM.int8() needs Turing or later
TRITON_CAPABILITY = 7.0  # Triton's README: NVIDIA GPUs from Volta on
UNBOUNDED_BYTES = 1e18  # more than any run holds or writes
FP8_CAPABILITY = 8.9  # torchao float8: Ada, Hopper and later


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as its driver sees it. A rate of 0 means: not native on this device.

    Tensor rates are dense and accumulate in fp32, which is what training uses.
    """

    name: str
    vendor: str  # nvidia | amd | apple | cpu
    aliases: tuple[str, ...]  # names a driver reports and short names people type
    architecture: str  # pascal, volta, turing, ampere, ada, hopper, blackwell, ...
    compute_capability: float  # 9.0; 0.0 where the notion does not exist
    form_factor: str
    memory_driver_bytes: float  # total as the driver reports it
    memory_torch_bytes: float  # total as torch sees it, below the driver's
    memory_bandwidth_bytes_per_s: float
    fp32_flop_per_s: float
    tf32_flop_per_s: float
    fp16_flop_per_s: float
    bf16_flop_per_s: float
    int8_op_per_s: float
    fp8_flop_per_s: float
    matmul_ceiling_fraction: float  # best measured (or generation's) share of the dense peak
    matmul_ceiling_measured: bool
    link_bytes_per_s: float  # to a peer on the same host, one direction: NVLink or PCIe
    has_nvlink: bool
    pcie_bytes_per_s: float  # to the host, one direction
    sm_count: int
    tdp_w: float
    release_year: int
    source: str
    notes: str = ""
    rates: DeviceRates | None = field(default=None, metadata=LATER)  # measured on this machine

    def __hash__(self) -> int:
        """Of what tells nearly all of them apart: curves are looked up by their device."""
        return hash(self.name)

    @property
    def is_cpu(self) -> bool:
        """Whether this is the machine's own processor."""
        return self.vendor == "cpu"

    @property
    def has_cuda(self) -> bool:
        """Whether torch drives it through its CUDA (or ROCm) interface."""
        return self.vendor in {"nvidia", "amd"}

    def peak_flop_per_s(self, precision: str) -> float:
        """[FLOP/s] dense peak in a compute dtype: fp32, tf32, fp16, bf16 or fp8; 0 if not native.

        fp8 is counted at the rate of bf16, in which all but some products of weights still run.
        """
        fp8 = self.fp8_flop_per_s > 0 and self.compute_capability >= FP8_CAPABILITY
        return {
            "fp8": self.bf16_flop_per_s if fp8 else 0.0,
            "fp32": self.fp32_flop_per_s,
            "tf32": self.tf32_flop_per_s,
            "fp16": self.fp16_flop_per_s,
            "bf16": self.bf16_flop_per_s,
        }[precision]


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the GPUs of one offer. `assumed` names the fields nobody stated."""

    cores: int
    ram_bytes: float
    shm_bytes: float
    disk_bytes: float
    checkpoint_write_bytes_per_s: float
    storage_read_bytes_per_s: float
    download_bytes_per_s: float
    wsl: bool = False
    assumed: tuple[str, ...] = ()
    loader: LoaderRates | None = field(default=None, metadata=LATER)  # measured on this machine
    start: Start | None = field(default=None, metadata=LATER)  # watched on this machine

    def stated_bytes(self, field: str) -> float:
        """[bytes] of memory or disk that somebody stated; what was only assumed forbids nothing."""
        return UNBOUNDED_BYTES if field in self.assumed else float(getattr(self, field))


@dataclass(frozen=True, slots=True)
class Network:
    """What joins several machines. Rates and latencies are as collectives of NCCL see them.

    nodes: how many machines, alike. bytes_per_s: of one machine's ports together, one direction, as
    the standard says; share: of it that large messages reach; hop_s: [s] from one machine to the
    next. log_sd: how far the share may be off, more where the rate is only the usual one.
    """

    name: str  # as it was stated: "infiniband-ndr", "efa"
    nodes: int
    bytes_per_s: float
    share: float
    hop_s: float
    log_sd: float
    source: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A device times a count at a price: what can be rented, or is owned.

    count: all devices, those of every machine. host: one of the machines.
    Errors: none here; loaders refuse counts below one and negative prices.
    """

    device: Device
    count: int
    usd_per_hour: float  # the whole offer
    host: Host
    price_source: str  # "job file", "runpod, list", "owned", "free", ...
    price_as_of: str | None = None  # ISO date, None where the notion does not apply
    spot: bool = False
    interruptions_per_hour: float = 0.0  # only spot offers are interrupted
    watts: float | None = None  # per device, where somebody stated it
    usd_per_kwh: float | None = None
    full_usd_per_hour: float | None = None  # owned: with the purchase spread over its use
    price_age_days: int | None = None  # when the job was read; None where there is no date
    month_usd: float | None = None  # subscription: what a month costs, however little is used
    memory_source: str = ""  # where the device's memory was read; empty: the catalogue
    instance: str = ""  # "aws p4d.24xlarge", where it was named so
    price_scaled_from: int = 0  # devices of the machine whose share the price is; 0: its own price
    price_asked: bool = False  # what somebody asked on a marketplace, not a published price
    network: Network | None = field(default=None, metadata=LATER)  # None: one machine

    @property
    def nodes(self) -> int:
        """How many machines the devices are spread over evenly."""
        return 1 if self.network is None else self.network.nodes

    @property
    def owned(self) -> bool:
        """Whether it is somebody's own machine, which costs electricity: then its watts stand."""
        return self.watts is not None

    @property
    def per_node(self) -> int:
        """Devices of one machine."""
        return self.count // self.nodes

    def is_of(self, row: Mapping[str, Any]) -> bool:
        """Whether a recorded row is of this machine, whatever it cost then."""
        network = self.network.name if self.network else None
        return (
            self.device.name, self.count, self.spot, self.instance, self.nodes, network
        ) == (
            row["device"], row["device_count"], row["spot"], row.get("instance") or "",
            row.get("nodes", 1), row.get("network"),
        )  # fmt: skip

    @property
    def usd_per_s(self) -> float:
        """[USD/s] of the whole offer."""
        return self.usd_per_hour / HOUR_S

    @property
    def price_marks(self) -> tuple[str, ...]:
        """What sets the price apart: free, owned, spot, old, scaled, asked; none for a fresh list.

        old: seen more than 90 days ago. scaled: a share of another machine's price. asked: a
        single offer or an average of a marketplace.
        """
        marks = {
            "owned": self.price_source.startswith("owned"),
            "free": self.usd_per_hour <= 0,
            "spot": self.spot,
            "old": (self.price_age_days or 0) > OLD_DAYS,
            "scaled": bool(self.price_scaled_from),
            "asked": self.price_asked,
        }
        return tuple(mark for mark, there in marks.items() if there)

    @property
    def label(self) -> str:
        """The offer in a few characters: "2x h100-sxm, spot"."""
        return machine_label(
            self.device.name, self.count, spot=self.spot, instance=self.instance,
            nodes=self.nodes, network=self.network.name if self.network else None,
        )  # fmt: skip


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
class Start:
    """[s] from a program's begin to its training's, without reading weights, and its log sd."""

    seconds: float
    log_sd: float


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
