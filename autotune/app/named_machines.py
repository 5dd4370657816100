"""`--gpu`, `--price` and `--spot`: machines by name, as entries of a job file's hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.catalog.devices import find_device, load_devices
from autotune.catalog.prices import price_for
from autotune.domain.errors import InputError
from autotune.domain.jobvalues import whole_or_zero
from autotune.domain.machine_text import machine_entry, split_machine, split_machines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Values = dict[str, Any]
ALL = "all"
_COUNTS = (1, 2, 4, 8)  # devices in one host that clouds sell


def replace_hardware(values: Values, gpus: Sequence[str], batch: int) -> None:
    """New hardware; a machine that the job describes too keeps its price and host there.

    Evidence keeps speaking of the machine that the job describes: the first, where it names none.
    """
    entries = entries_of(values)
    evidence = values.get("evidence")
    for item in evidence if isinstance(evidence, list) else []:
        if entries and isinstance(item, dict):
            item["hardware"] = _described(item.get("hardware"), entries)
    plan = values.get("stated")
    for item in [plan] if isinstance(plan, dict) else plan if isinstance(plan, list) else []:
        if entries and isinstance(item, dict) and item.get("hardware") is None:
            item["hardware"] = f"{entries[0].get('gpu')}:{entries[0].get('count', 1)}"
    wanted = split_machines(tuple(gpus))
    values["hardware"] = [entry for text in wanted for entry in _machines(text, entries, batch)]
    if not values["hardware"]:
        msg = "--gpu names no device"
        raise InputError(msg, "`autotune devices` lists them")


def entries_of(values: Values) -> list[Values]:
    """The hardware of a job file's mapping, one mapping an entry; what is none is left out."""
    stated = values.get("hardware")
    items = [stated] if isinstance(stated, str | dict) else stated
    return [
        machine_entry(item) if isinstance(item, str | dict) else {}
        for item in (items if isinstance(items, list) else ())
    ]


def _key(entry: Values) -> tuple[str | None, int]:
    """Device and count of an entry; no device where nobody knows the name."""
    return device_name(str(entry.get("gpu"))), whole_or_zero(entry.get("count", 1))


def _described(seen: object, entries: Sequence[Values]) -> object:
    """The machine of a piece of evidence as the job's hardware describes it."""
    if seen is None:
        return dict(entries[0])
    if not isinstance(seen, str):
        return seen
    wanted = _key(machine_entry(seen))
    same = (dict(entry) for entry in entries if _key(entry) == wanted)
    return next(same, seen) if wanted[0] else seen


def _machines(text: str, stated: list[Values], batch: int) -> list[Values]:
    """The entries that one name of `--gpu` stands for."""
    said = split_machine(text)
    found = list(_named(said.name, said.count, stated, batch))
    if said.spot:
        found = [_on_spot(entry) for entry in found]
    if said.price is None:
        return found
    priced = [{**entry, "price": said.price} for entry in found]
    return [{key: entry[key] for key in entry if key != "owned"} for entry in priced]


def _named(name: str, count: int | None, stated: list[Values], batch: int) -> Iterator[Values]:
    if name.casefold() == ALL:
        for device in priced_devices():
            for each in (count,) if count else _COUNTS:
                if count or each == 1 or batch % each == 0:
                    yield from _stated_or_plain(device, each, stated)
        return
    device = find_device(name).name
    same = [
        entry for entry in stated if _key(entry)[0] == device and count in {None, _key(entry)[1]}
    ]
    yield from same or [{"gpu": device, "count": count or 1}]


def _stated_or_plain(name: str, count: int, stated: list[Values]) -> list[Values]:
    """The machine as the job describes it, where it does."""
    same = [entry for entry in stated if _key(entry) == (name, count)]
    return same or [{"gpu": name, "count": count}]


def _on_spot(entry: Values) -> Values:
    return {**{k: v for k, v in entry.items() if k not in {"price", "owned"}}, "spot": True}


def add_spot(values: Values) -> None:
    """Beside every machine on demand the same one on spot, where a spot price is known."""
    entries = entries_of(values)
    more = [
        _on_spot(entry) for entry in entries if not entry.get("spot") and _has_spot_price(entry)
    ]
    values["hardware"] = entries + [entry for entry in more if entry not in entries]


def _has_spot_price(entry: Values) -> bool:
    name, count = _key(entry)
    return name is not None and count > 0 and price_for(name, count, spot=True) is not None


def set_prices(values: Values, price: str) -> None:
    """One price for every machine of the job."""
    entries = entries_of(values)
    for entry in entries:
        entry.pop("owned", None)
        entry["price"] = price
    values["hardware"] = entries


def device_name(text: str) -> str | None:
    """The catalogue's name of a device; None where nobody knows it."""
    try:
        return find_device(text).name
    except InputError:
        return None


def priced_devices() -> list[str]:
    """Every NVIDIA device with an on-demand price for one, by name."""
    return sorted(
        name
        for name, device in load_devices().items()
        if device.vendor == "nvidia" and price_for(name) is not None
    )
