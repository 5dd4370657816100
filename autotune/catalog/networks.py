"""Networks between machines, by the names that people give them: "infiniband-ndr", "8x roce-200g".

`data/networks.csv` has the rate of a port, the share of it that collectives reach, and the latency.
Where only the kind is named, the rate is the one usual beside the device, and the interval wider.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.tables import DATA, names, number, read_rows
from autotune.domain.device import Network
from autotune.domain.errors import InputError, close_matches, did_you_mean
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.device import Device

HOW_TO_NAME = (
    "name what joins the machines: infiniband-hdr, infiniband-ndr, roce-200g, efa-400g, "
    "ethernet-10g, -25g or -100g; with several ports in a machine: 8x infiniband-ndr"
)
BYTES = 1e9 / 8.0  # of a gigabit
BOARD = 8  # GPUs with NVLink in one machine, beside which each has a port of its own
# Log sd of a rate that nobody stated: clouds sell the same board with an eighth to twice the usual.
RATE_ASSUMED = 0.5
GREATEST_GBIT = 100_000
_RATE = re.compile(
    r"(?<![a-z0-9])(\d{1,6}(?:\.\d{1,3})?)[\s-]*(g|gb|gbe|gbit|gbps|gbit/s|gb/s|gige)?"
    r"(?![a-z0-9])"
)
_PORTS = re.compile(r"^(\d{1,3})\s*[x*]\s*")
_GBE = re.compile(r"(\d)\s*(gbe|gige)\b")
# Gb/s of a machine of eight, or of a port, where only the kind is named. Source: AWS's pages of
# p4d (400 Gb/s), p5, p5e and p6 (3200 Gb/s), g6e.48xlarge (400 Gb/s), others 100 Gb/s or less;
# NVIDIA's DGX A100 (HDR) and DGX H100 (NDR) data sheets.
_EFA = {"hopper": 3200.0, "blackwell": 3200.0, "ampere": 400.0}
_PORT_BESIDE = {"hopper": 400.0, "blackwell": 400.0}
_INFINIBAND = {"hopper": "infiniband-ndr", "blackwell": "infiniband-ndr"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table. per_machine: its rate is that of all ports together."""

    name: str
    aliases: tuple[str, ...]
    gbit_per_s: float
    per_machine: bool
    share: float
    hop_s: float
    log_sd: float
    source: str


@lru_cache(maxsize=1)
def kinds() -> tuple[Kind, ...]:
    """Every kind of network that is known."""
    return tuple(
        Kind(
            row["name"], names(row, "aliases"), number(row, "gbit_per_s"), row["per"] == "machine",
            number(row, "share"), number(row, "hop_us") * 1e-6, number(row, "log_sd"),
            f"{row['source']}; entered {row['entered']}",
        )
        for row in read_rows(DATA / "networks.csv")
    )  # fmt: skip


def find_network(text: str, nodes: int, device: Device, per_node: int) -> tuple[Network, str]:
    """The network of that name between `nodes` machines with `per_node` of the device each.

    Returns it and what of it had to be assumed (empty: nothing). Raises InputError for a name that
    nobody knows, or a rate out of range.
    """
    word = _GBE.sub(r"\1g ethernet", text.strip().casefold().replace("_", "-"))
    counted = _PORTS.match(word)
    ports = int(counted[1]) if counted else None
    rate, kind = _rate_and_kind(word[counted.end() :] if counted else word, text, device)
    assumed: list[str] = []
    if rate is None:
        rate = _usual_rate(kind, device)
        if kind.name in {"efa", "roce", "ethernet"}:
            assumed.append(f"{rate:g} Gb/s {'a machine' if kind.per_machine else 'a port'}")
    if ports is None and not kind.per_machine:
        own = device.has_nvlink and per_node > 1 and kind.name != "ethernet"
        ports = min(per_node, BOARD) if own else 1
        assumed.append(f"{ports} port{'s' * (ports > 1)} in each machine")
    total = rate * (ports or 1)
    log_sd = (kind.log_sd**2 + (RATE_ASSUMED**2 if assumed else 0.0)) ** 0.5
    network = Network(
        text.strip(), nodes, total * BYTES, kind.share, kind.hop_s, log_sd, kind.source
    )
    return network, ", ".join(assumed)


def _rate_and_kind(word: str, text: str, device: Device) -> tuple[float | None, Kind]:
    """[Gb/s] that the name states (None: none), and its kind."""
    found = _RATE.search(word)
    bare = re.sub(r"[\s-]+", "-", _RATE.sub(" ", word)).strip("-")
    bare = _infiniband(found, device) if bare in {"infiniband", "ib"} else bare
    kind = next((each for each in kinds() if bare in {each.name, *each.aliases}), None)
    if kind is None:
        if found and not re.sub(r"[\W_]|g?bits?|gbps|gb|ps|s", "", bare):
            msg = f'network "{text[:60]}": a rate, but not of what kind of network'
            raise InputError(msg, HOW_TO_NAME)
        known = [name for each in kinds() for name in (each.name, *each.aliases)]
        msg = f'unknown network "{text[:60]}"{did_you_mean(close_matches(bare, known))}'
        raise InputError(msg, HOW_TO_NAME)
    rate = float(found[1]) if found else None
    if rate is not None and not 0 < rate <= GREATEST_GBIT:
        msg = f'network "{text[:60]}": {found[1] if found else ""} Gb/s is no rate of a network'
        raise InputError(msg, HOW_TO_NAME)
    return rate, kind


def _infiniband(rate: re.Match[str] | None, device: Device) -> str:
    """InfiniBand of a rate, or of the generation usual beside the device."""
    if rate is None:
        return _INFINIBAND.get(device.architecture, "infiniband-hdr")
    same = (
        each.name for each in kinds()
        if each.name.startswith("infiniband") and each.gbit_per_s == float(rate[1])
    )  # fmt: skip
    return next(same, "infiniband-hdr")


def _usual_rate(kind: Kind, device: Device) -> float:
    """[Gb/s] of a port, or of a machine, where the name states none."""
    if kind.name == "efa":
        large = device.has_nvlink
        return _EFA.get(device.architecture, kind.gbit_per_s) if large else kind.gbit_per_s
    if kind.name == "roce":
        return _PORT_BESIDE.get(device.architecture, kind.gbit_per_s)
    return kind.gbit_per_s
