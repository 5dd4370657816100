"""`--gpu`, `--price` and `--spot`: machines by name, as entries of a job file's hardware.

An instance of a cloud (p4d.24xlarge) becomes the devices that it holds, and keeps its name for its
price and host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.catalog.devices import find_device, known_device, load_devices
from autotune.catalog.prices.instances import HOW_TO_NAME, find_instance, unknown_instance
from autotune.catalog.prices.prices import (
    WITHIN_A_YEAR,
    price_for,
    price_of_instance,
    sold_counts,
    sold_devices,
)
from autotune.domain.errors import InputError
from autotune.domain.typed.machine import machine_entry, split_machine, split_machines
from autotune.domain.typed.values import whole_or_zero

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.domain.typed.machine import MachineText

Values = dict[str, Any]
ALL = "all"
_CAMPAIGN = {"phases", "runs"}
COUNTS = (1, 2, 4, 8)  # devices in one host that clouds sell


def replace_hardware(values: Values, gpus: Sequence[str], batch: int) -> None:
    """New hardware; a machine that the job describes too keeps its price and host there.

    Evidence keeps speaking of the machine that the job describes: the first, where it names none.
    """
    entries = entries_of(values)
    evidence = values.get("evidence")
    for item in evidence if isinstance(evidence, list) else []:
        if entries and isinstance(item, dict):
            item["hardware"] = _described(item.get("hardware"), entries)
    plan = None if _CAMPAIGN & set(values) else values.get("stated")  # whose own is of no machine
    for item in [plan] if isinstance(plan, dict) else plan if isinstance(plan, list) else []:
        if entries and isinstance(item, dict) and item.get("hardware") is None:
            item["hardware"] = f"{entries[0].get('gpu')}:{entries[0].get('count', 1)}"
    wanted = split_machines(tuple(gpus))
    values["hardware"] = [entry for text in wanted for entry in _machines(text, entries, batch)]
    if not values["hardware"]:
        msg = "--gpu names no device"
        raise InputError(msg, "`autotune devices` lists them")


def name_devices(values: Values) -> None:
    """Instances of the hardware and of the evidence become their devices. Raises InputError.

    What lies below these two keys is replaced, never changed in place.
    """
    stated = values.get("hardware")
    if isinstance(stated, str | dict):
        values["hardware"] = _instance_as_devices(stated, "hardware")
    elif isinstance(stated, list):
        values["hardware"] = [
            _instance_as_devices(item, f"hardware[{index}]") for index, item in enumerate(stated)
        ]
    evidence = values.get("evidence")
    if isinstance(evidence, list):
        named = {
            index: _instance_as_devices(item["hardware"], f"evidence[{index}].hardware")
            for index, item in enumerate(evidence)
            if isinstance(item, dict) and item.get("hardware") is not None
        }
        values["evidence"] = [
            {**item, "hardware": named[index]} if index in named else item
            for index, item in enumerate(evidence)
        ]


def _instance_as_devices(item: object, where: str) -> object:
    """An entry that names an instance as its devices; any other as it is."""
    if not isinstance(item, str | dict):
        return item
    try:
        entry = machine_entry(item)
        named = as_devices(entry)
    except InputError as error:
        msg = f"{where}: {error.message}"
        raise InputError(msg, error.hint) from None
    return item if named == entry else named


def as_devices(entry: Values) -> Values:
    """An entry's instance (as `gpu` or `instance`) as the devices it holds; others unchanged.

    Raises InputError for a count or a device that the instance does not have, and for the name of
    an instance that nobody knows.
    """
    text, gpu = entry.get("instance"), entry.get("gpu")
    if text is None and (not isinstance(gpu, str) or known_device(gpu) or gpu.casefold() == ALL):
        return entry
    found = find_instance(str(gpu if text is None else text))
    if found is None:
        unknown = unknown_instance(str(gpu)) if text is None else None
        if unknown is not None:
            raise unknown
        if text is not None and gpu is None:
            msg = f"unknown instance {str(text)[:80]!r}"
            raise InputError(msg, HOW_TO_NAME)
        return entry  # a recorded one that the tables no longer have, or the name of a device
    nodes = whole_or_zero(entry.get("nodes", 1))
    if whole_or_zero(entry.get("count") or nodes * found.count) != nodes * found.count:
        msg = f"{found.label} has {found.count}x {found.device}, and {entry['count']} are asked for"
        hint = "an instance is one machine; leave the count out, or name devices; nodes: 2 is two"
        raise InputError(msg, hint)
    if text is not None and gpu is not None and known_device(str(gpu)) != found.device:
        msg = f"{found.label} has {found.count}x {found.device}, and gpu is {str(gpu)[:80]!r}"
        raise InputError(msg, "leave gpu out")
    count = max(nodes, 1) * found.count
    return {**entry, "gpu": found.device, "count": count, "instance": found.label}


def entries_of(values: Values) -> list[Values]:
    """The hardware of a job file's mapping, one mapping an entry; what is none is left out."""
    stated = values.get("hardware")
    items = [stated] if isinstance(stated, str | dict) else stated
    return [
        machine_entry(item) if isinstance(item, str | dict) else {}
        for item in (items if isinstance(items, list) else ())
    ]


def _key(entry: Values) -> tuple[str | None, int, int]:
    """Device, count and machines of an entry; no device where nobody knows the name."""
    count, nodes = whole_or_zero(entry.get("count", 1)), whole_or_zero(entry.get("nodes", 1))
    return known_device(str(entry.get("gpu"))), count, nodes


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
    found = list(_named(said, stated, batch))
    if said.spot:
        found = [_on_spot(entry) for entry in found]
    if said.price is None:
        return found
    priced = [{**entry, "price": said.price} for entry in found]
    return [{key: entry[key] for key in entry if key != "owned"} for entry in priced]


def _named(said: MachineText, stated: list[Values], batch: int) -> Iterator[Values]:
    name, count = said.name, said.count
    if said.nodes > 1 or said.network is not None:
        yield from _several(said, stated)
        return
    if name.casefold() == ALL:
        for device in priced_devices():
            for each in (count,) if count else COUNTS:
                if count or each == 1 or batch % each == 0:
                    yield from _stated_or_sold(device, each, stated)
        return
    asked = as_devices({"gpu": name} if count is None else {"gpu": name, "count": count})
    device, instance = find_device(str(asked["gpu"])).name, asked.get("instance")
    same = [
        entry
        for entry in stated
        if _key(entry)[0] == device
        and (instance is None or entry.get("instance") == instance)
        and count in {None, _key(entry)[1]}
        and (count is None or _key(entry)[2] == 1)
    ]
    yield from same or [{**asked, "gpu": device, "count": asked.get("count", 1)}]


def _several(said: MachineText, stated: list[Values]) -> Iterator[Values]:
    """Machines alike; as the job describes them where it has the same ones."""
    whole: Values = {"gpu": said.name, "nodes": said.nodes, "count": said.count}
    if said.nodes == 1 and known_device(said.name) is None:  # so many of an instance
        whole |= {"nodes": said.devices, "count": None}
    asked = as_devices(whole)
    own = {"gpu": find_device(str(asked["gpu"])).name}
    own |= {"network": said.network} if said.network is not None else {}
    entry = {**asked, **own}
    same = [
        each for each in stated
        if _key(each) == _key(entry)
        and entry.get("instance") in {None, each.get("instance")}
        and said.network in {None, each.get("network")}
    ]  # fmt: skip
    yield from same or [entry]


def _stated_or_sold(name: str, count: int, stated: list[Values]) -> list[Values]:
    """The machine as the job describes it; else as somebody sells it; none where nobody does.

    A price of more than a year ago is no evidence of an offer, unless there is no other.
    """
    same = [entry for entry in stated if _key(entry) == (name, count, 1)]
    sold = sold_counts(name, within=WITHIN_A_YEAR) or sold_counts(name)
    return same or ([{"gpu": name, "count": count}] if count in sold else [])


def _on_spot(entry: Values) -> Values:
    return {**{k: v for k, v in entry.items() if k not in {"price", "owned"}}, "spot": True}


def add_spot(values: Values) -> None:
    """Beside every machine on demand the same one on spot, where a spot price is known.

    Raises InputError where it is known of none.
    """
    entries = entries_of(values)
    more = [
        _on_spot(entry) for entry in entries if not entry.get("spot") and _has_spot_price(entry)
    ]
    if entries and not more and not any(entry.get("spot") for entry in entries):
        named = dict.fromkeys(str(entry.get("gpu") or entry.get("instance")) for entry in entries)
        msg = f"--spot: no spot price is known of {', '.join(named)}"
        hint = 'leave out --spot, or state what you pay: `--gpu "NAME spot@0.50USD/h"`'
        raise InputError(msg, f"{hint}; `autotune prices` lists what is known")
    values["hardware"] = entries + [entry for entry in more if entry not in entries]


def _has_spot_price(entry: Values) -> bool:
    name, count, nodes = _key(entry)
    instance = find_instance(str(entry["instance"])) if entry.get("instance") else None
    if instance is not None:
        return price_of_instance(instance.provider, instance.listed_as, spot=True)[0] is not None
    each = count // max(nodes, 1)
    price = price_for(name, each, spot=True) if name is not None and each > 0 else None
    return price is not None and not price.scaled_from


def set_prices(values: Values, price: str) -> None:
    """One price for every machine of the job."""
    entries = entries_of(values)
    for entry in entries:
        entry.pop("owned", None)
        entry["price"] = price
    values["hardware"] = entries


def set_host(values: Values, key: str, value: str) -> None:
    """One fact of the host of every machine of the job, as if each stated it."""
    entries = entries_of(values)
    for entry in entries:
        host = entry.get("host")
        entry["host"] = {**(host if isinstance(host, dict) else {}), key: value}
    values["hardware"] = entries


def priced_devices() -> list[str]:
    """Every NVIDIA device that somebody sells at an on-demand price, by name."""
    known = load_devices()
    return sorted(n for n in sold_devices() if n in known and known[n].vendor == "nvidia")
