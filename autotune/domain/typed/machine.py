"""A machine as people write it: "h100", "8xH100", "H100 x8", "h100:8", "2x h100-sxm, spot".

Several machines: "2x8xH100 over efa", which is 16 devices on two machines and what joins them.

Only the text is taken apart here; whether there is such a device is the catalogue's to say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMS = "write NAME, NAME:N or 8xNAME, with N a count from 1 on; 2x8xNAME is two machines"
_TIMES = "[x\u00d7*]"
_COUNT = r"([0-9]{1,6})"
_NUMBERED = re.compile(r"^GPU [0-9]+: (.+?)(?: \(UUID: [^)]*\))?$")  # a line of nvidia-smi -L
_NODES = re.compile(rf"^{_COUNT}\s*{_TIMES}\s*(?={_COUNT}\s*{_TIMES})", re.IGNORECASE)
_OVER = re.compile(r"\s+over\s+(.+)$", re.IGNORECASE)
_SPOT = re.compile(r"(?:,\s*|\s+)spot$", re.IGNORECASE)
# "1x4090" and "4090 x 1"; "8 H100" needs its blank; a glued x at most two digits: "rtx4090" is a
# name.
_BEFORE = (
    re.compile(rf"^{_COUNT}\s*{_TIMES}[\s-]*(?=[A-Za-z]|[0-9]{{4}})", re.IGNORECASE),
    re.compile(r"^([0-9]{1,3})\s+(?=[A-Za-z])"),
)
_AFTER = (
    re.compile(r"\s*:\s*([^:]*)$"),
    re.compile(rf"\s+{_TIMES}\s*{_COUNT}$", re.IGNORECASE),
    re.compile(r"(?<=[A-Za-z0-9])[\u00d7*]\s*([0-9]{1,6})$"),
    re.compile(r"(?<=[A-Za-z0-9])[xX]([0-9]{1,2})$"),
)


@dataclass(frozen=True, slots=True)
class MachineText:
    """What a text says of a machine, or of several alike. count: None where it says none.

    count: devices of all machines; nodes: the machines; network: what joins them.
    """

    name: str
    count: int | None = None
    spot: bool = False
    price: str | None = None  # behind an @
    nodes: int = 1
    network: str | None = None

    @property
    def devices(self) -> int:
        """The count; a name without one is one device."""
        return 1 if self.count is None else self.count


def split_machine(text: str) -> MachineText:
    """The name, count, terms and price of a machine. Raises InputError for a bad count."""
    rest, at, price = text.strip().partition("@")
    rest = rest.strip()
    listed = _NUMBERED.match(rest)
    if listed:
        rest = listed[1]
    unspotted = _SPOT.sub("", rest)
    over = _OVER.search(unspotted)
    alone = unspotted[: over.start()] if over else unspotted
    several = _NODES.match(alone)
    nodes = _count(several[1], text) if several else 1
    before, rest_after = _cut(
        _BEFORE, alone[several.end() :] if several else alone, text, from_end=False
    )
    after, name = _cut(_AFTER, rest_after, text, from_end=True)
    if before is not None and after is not None:
        msg = f'"{text[:80]}" states two counts, {before} and {after}'
        raise InputError(msg, FORMS)
    count = before if after is None else after
    if not name or (at and not price.strip()):
        msg = f'"{text[:80]}" names no {"price behind @" if name else "device"}'
        raise InputError(msg, FORMS)
    return MachineText(
        name, nodes * (count or 1) if several else count, unspotted != rest, price.strip() or None,
        nodes, over[1].strip() if over else None,
    )  # fmt: skip


def _cut(
    patterns: tuple[re.Pattern[str], ...], rest: str, text: str, *, from_end: bool
) -> tuple[int | None, str]:
    """The count that the first matching pattern finds, and the text without it."""
    for pattern in patterns:
        match = pattern.search(rest)
        if match:
            left = rest[: match.start()] if from_end else rest[match.end() :]
            return _count(match[1], text), left.strip()
    return None, rest.strip()


def _count(digits: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", digits.strip()) or int(digits) < 1:
        msg = f'"{text[:80]}" must be a device\'s name with a count from 1 on, not {digits[:20]!r}'
        raise InputError(msg, FORMS)
    return int(digits)


def split_machines(texts: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Machines from repeated options that may hold commas; "2x h100-sxm, spot" is one."""
    parts: list[str] = []
    for text in texts:
        pieces = [piece.strip() for piece in text.split(",")]
        for index, piece in enumerate(pieces):
            if piece.casefold() == "spot" and index and parts:
                parts[-1] += ", spot"
            elif piece:
                parts.append(piece)
    return tuple(parts)


def machine_label(
    device: str, count: int, *, spot: bool, instance: str | None, counted: bool = False,
    nodes: int = 1, network: str | None = None,
) -> str:  # fmt: skip
    """A machine in a few characters, as `split_machine` reads it: "2x h100-sxm, spot".

    Several machines: "2x 8x h100-sxm over efa". counted: also one device with its count.
    """
    times = f"{count}x " if count > 1 or counted else ""
    if nodes > 1:
        times = f"{nodes}x {count // nodes}x "
    name = f" ({instance})" if instance else ""
    over = f" over {network}" if network else ""
    return f"{times}{device}{name}{over}{', spot' if spot else ''}"


def recorded_label(row: Mapping[str, Any], *, counted: bool = False) -> str:
    """The machine of a recorded row, whose JSON names several machines only where there are."""
    return machine_label(
        row["device"], int(row["device_count"]), spot=row.get("spot", False),
        instance=row.get("instance"), counted=counted, nodes=row.get("nodes", 1),
        network=row.get("network"),
    )  # fmt: skip


def machine_entry(value: str | int | Mapping[str, Any]) -> dict[str, Any]:
    """A hardware entry with name, count, terms and price apart, however its `gpu` is written.

    A name of digits alone (4090) is a number in YAML.

    Raises InputError where the text and the entry's other keys contradict each other.
    """
    entry: dict[str, Any] = {"gpu": value} if isinstance(value, str | int) else dict(value)
    text = entry.get("gpu")
    if isinstance(text, int) and not isinstance(text, bool):
        text = entry["gpu"] = str(text)
    if not isinstance(text, str) or not text.strip():
        return entry
    said = split_machine(text)
    count = entry.get("count")
    if said.count is not None and count is not None and str(count).strip() != str(said.count):
        msg = f"gpu is {text[:80]!r}, but count is {str(count)[:20]}"
        raise InputError(msg, "state the count once")
    if said.price is not None and not {"price", "owned"}.isdisjoint(entry):
        msg = f"gpu is {text[:80]!r}, and the entry states its price elsewhere too"
        raise InputError(msg, "state the price once")
    nodes, network = entry.get("nodes"), entry.get("network")
    if said.nodes > 1 and nodes is not None and str(nodes).strip() != str(said.nodes):
        msg = f"gpu is {text[:80]!r}, but nodes is {str(nodes)[:20]}"
        raise InputError(msg, "state the number of machines once")
    if said.network is not None and network is not None and network != said.network:
        msg = f"gpu is {text[:80]!r}, but network is {str(network)[:40]!r}"
        raise InputError(msg, "state the network once")
    stated = {
        "count": said.count, "spot": said.spot or None, "price": said.price,
        "nodes": said.nodes if said.nodes > 1 else None, "network": said.network,
    }  # fmt: skip
    return entry | {"gpu": said.name} | {k: v for k, v in stated.items() if v is not None}
