"""Hardware of a job file -> offers: device, count, host and price, each with its origin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.catalog.devices import of_ram
from autotune.catalog.networks import HOW_TO_NAME, find_network
from autotune.catalog.prices.instances import find_instance
from autotune.catalog.prices.prices import age_days, price_for, price_of_instance, sold_counts
from autotune.catalog.prices.table import INDICATIVE
from autotune.domain.device import Host, Offer
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption
from autotune.domain.typed.values import MAX_USD, parse_offer_price, parse_usd_per_kwh
from autotune.domain.units import (
    HOUR_S,
    HOURS_PER_DAY,
    YEAR_S,
    format_bytes,
    format_usd,
    parse_bytes,
    parse_bytes_per_s,
    parse_seconds,
    parse_usd,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.catalog.prices.instances import Instance
    from autotune.catalog.prices.prices import Price
    from autotune.domain.device import Device, Network
    from autotune.domain.typed.hardware import HardwareSection, HostSection, OwnedSection

    Machine = tuple[Device, Host]  # and the host assumed around it

# Assumption where a spot offer states no rate: a tenth of such machines is taken back on a day.
# Not measured. AWS's Spot Instance Advisor sorts types into bands from under 5 % to over 20 % a
# month; GPU types are the ones in demand, so this errs on the careful side.
SPOT_INTERRUPTIONS_PER_DAY = 0.10
# Assumptions where a purchase is stated without them: four years, half of them in use.
OWNED_LIFETIME_S, OWNED_UTILISATION = 4 * YEAR_S, 0.5
SLOWEST_BYTES_PER_S = 1.0

# job-file key -> (Host field, parser)
_HOST_KEYS: dict[str, tuple[str, Callable[[str], float] | None]] = {
    "cores": ("cores", None),
    "ram": ("ram_bytes", parse_bytes),
    "shm": ("shm_bytes", parse_bytes),
    "disk": ("disk_bytes", parse_bytes),
    "checkpoint_write": ("checkpoint_write_bytes_per_s", parse_bytes_per_s),
    "storage_read": ("storage_read_bytes_per_s", parse_bytes_per_s),
    "download": ("download_bytes_per_s", parse_bytes_per_s),
    "wsl": ("wsl", None),
}
_KEY_OF_FIELD = {field: key for key, (field, _) in _HOST_KEYS.items()}


def offer_of(
    section: HardwareSection, index: int, machine: Machine, assumed: list[Assumption]
) -> Offer:
    """One offer. What was not stated is appended to `assumed`. Raises InputError."""
    where = f"hardware[{index}]"
    device, host = machine
    instance = find_instance(section.instance) if section.instance else None
    if device.is_cpu and section.count != section.nodes:
        msg = f"{where}: cpu is this machine, so its count is 1, not {section.count}"
        raise InputError(msg, 'machines like this one: "2x1xcpu over ethernet-10g"')
    times = f"{section.count}x " if section.count > 1 else ""
    if section.nodes > 1:
        times = f"{section.nodes}x {section.per_node}x "
    label = f"{where} ({times}{device.name})"
    if instance is not None:
        host = _host_of(instance, host, label, assumed)
    host = _host(section.host, host, device, label, assumed)
    if device.vendor == "apple" and section.host and section.host.ram is not None:
        device = of_ram(device, host.ram_bytes)
    name = section.instance or ""
    network = _network(section, device, label, assumed)
    offer = Offer(
        device, section.count, 0.0, host, "", spot=section.spot, instance=name, network=network
    )
    offer = _priced(offer, section, label, assumed)
    return _interrupted(offer, section, label, assumed)


def _network(
    section: HardwareSection, device: Device, label: str, assumed: list[Assumption]
) -> Network | None:
    """What joins several machines; None for one. Raises InputError where nobody states it."""
    nodes, each = section.nodes, section.per_node
    if nodes == 1:
        return None
    if section.network is None:
        msg = f"{label}: {nodes} machines, and the network between them is not stated"
        known = f'such as --gpu "{nodes}x{each}x{device.name} over infiniband-ndr"'
        raise InputError(msg, f"state it, {known}; {HOW_TO_NAME}")
    network, guessed = find_network(section.network, nodes, device, each)
    if guessed:
        why = f"not stated; usual beside {device.name}"
        assumed.append(Assumption(f"{label}.network", f"{network.name}: {guessed}", why))
    return network


def distinct(
    sections: Sequence[HardwareSection], machines: Sequence[Machine]
) -> tuple[tuple[HardwareSection, Machine], ...]:
    """The entries without those that say the same as an earlier one, whatever the spelling."""
    found: dict[str, tuple[HardwareSection, Machine]] = {}
    for section, machine in zip(sections, machines, strict=True):
        same = section.model_copy(update={"gpu": machine[0].name}).model_dump_json()
        found.setdefault(same, (section, machine))
    return tuple(found.values())


def _host_of(instance: Instance, host: Host, label: str, assumed: list[Assumption]) -> Host:
    """The assumed host with what is known of the instance around the devices."""
    value = f"{instance.label}: {instance.count}x {instance.device}"
    if not instance.vcpus or not instance.ram_bytes:
        assumed.append(Assumption(f"{label}.instance", value, "the table of prices says so"))
        return host
    value += f", {instance.vcpus} vCPUs, {format_bytes(instance.ram_bytes)}"
    assumed.append(Assumption(f"{label}.instance", value, instance.source))
    known = {"cores", "ram_bytes", "shm_bytes"}
    return replace(
        host,
        cores=instance.vcpus,
        ram_bytes=instance.ram_bytes,
        shm_bytes=instance.ram_bytes / 2,  # Linux gives /dev/shm half of the RAM
        assumed=tuple(name for name in host.assumed if name not in known),
    )


def _host(
    stated: HostSection | None, host: Host, device: Device, label: str, assumed: list[Assumption]
) -> Host:
    """The host with what the job states of it; what is left of the assumed is listed."""
    values: dict[str, Any] = {}
    for key, (field, parse) in _HOST_KEYS.items():
        value = getattr(stated, key, None)
        if value is not None:
            values[field] = parse(value) if parse else value
            if field.endswith("_per_s") and values[field] < SLOWEST_BYTES_PER_S:
                msg = f"{label}.host.{key}: {value!r} must be at least 1 B/s"
                raise InputError(msg)
    if "ram_bytes" in values and "shm_bytes" not in values and "shm_bytes" in host.assumed:
        values["shm_bytes"] = values["ram_bytes"] / 2  # Linux gives /dev/shm half of the RAM
    left = tuple(
        name
        for name in host.assumed
        if getattr(stated, _KEY_OF_FIELD.get(name, name), None) is None
    )
    host = replace(host, **values, assumed=left)
    if left:
        text = ", ".join(f"{_KEY_OF_FIELD.get(name, name)} {_shown(host, name)}" for name in left)
        why = (
            "not stated; typical of a machine with this device"
            if not device.is_cpu
            else ("not measured on this machine")
        )
        assumed.append(Assumption(f"{label}.host", text, why))
    return host


def _shown(host: Host, name: str) -> str:
    value = getattr(host, name)
    if name.endswith("_per_s"):
        return f"{format_bytes(value)}/s"
    return format_bytes(value) if name.endswith("_bytes") else str(value)


def _priced(offer: Offer, section: HardwareSection, label: str, assumed: list[Assumption]) -> Offer:
    """The offer with its price: stated, electricity, free on this machine, or the catalogue's."""
    if section.owned is not None:
        return _owned(offer, section, label, assumed)
    price = section.price
    if isinstance(price, str):
        usd_per_hour, per_gpu = parse_offer_price(price)
        total = usd_per_hour * (offer.count if per_gpu else 1)
        source = "free" if price.strip().casefold() == "free" else "job file"
        return replace(offer, usd_per_hour=total, price_source=source)
    if price is not None:
        total = parse_usd(price.per_month) / price.hours
        if total > MAX_USD:
            msg = f"{label}.price: {price.per_month} for {price.hours:g} h is no sensible price"
            raise InputError(msg, "hours: how many hours of use a month's payment buys")
        source = f"job file: {price.per_month} a month for {price.hours:g} h of use"
        return replace(
            offer,
            usd_per_hour=total,
            price_source=source,
            month_usd=parse_usd(price.per_month),
        )
    if offer.device.is_cpu:
        assumed.append(Assumption(f"{label}.price", "free", "your own machine; electricity apart"))
        return replace(offer, price_source="own machine")
    return _catalog_priced(offer, label, assumed)


def _owned(offer: Offer, section: HardwareSection, label: str, assumed: list[Assumption]) -> Offer:
    """[USD/h] watts x devices x price of a kilowatt-hour; in full, the purchase spread over use.

    Formula: full = electricity + purchase / (lifetime x utilisation).
    """
    owned = section.owned
    if owned is None:  # pragma: no cover - the caller asked
        return offer
    watts = owned.watts
    if watts is None:
        watts = offer.device.tdp_w
        why = "not stated; the device's rated power, its upper bound under load"
        assumed.append(Assumption(f"{label}.owned.watts", f"{watts:g}", why))
    usd_per_kwh = parse_usd_per_kwh(owned.electricity)
    marginal = watts * offer.count / 1000 * usd_per_kwh
    full = marginal + _purchase_per_hour(owned, label, assumed) if owned.purchase else None
    counted_full = full is not None and owned.cost == "full"
    return replace(
        offer,
        usd_per_hour=full if full is not None and counted_full else marginal,
        price_source="owned, electricity and purchase" if counted_full else "owned, electricity",
        watts=owned.watts,
        usd_per_kwh=usd_per_kwh,
        full_usd_per_hour=full,
    )


def _purchase_per_hour(owned: OwnedSection, label: str, assumed: list[Assumption]) -> float:
    """[USD/h] of use that the purchase comes to; what was not stated is assumed."""
    lifetime_s = parse_seconds(owned.lifetime) if owned.lifetime else OWNED_LIFETIME_S
    used = owned.utilisation or OWNED_UTILISATION
    if owned.lifetime is None:
        why = "not stated; how long a computer is commonly written off"
        assumed.append(Assumption(f"{label}.owned.lifetime", "4 years", why))
    if owned.utilisation is None:
        why = "not stated; the share of its life in which it trains"
        assumed.append(Assumption(f"{label}.owned.utilisation", f"{used:g}", why))
    hours = lifetime_s / HOUR_S * used
    total = parse_usd(owned.purchase or "0 USD") / hours
    if total > MAX_USD:
        msg = f"{label}.owned: {owned.purchase} over {hours:.3g} h of use is no sensible price"
        raise InputError(msg, "lifetime x utilisation are the hours that the purchase buys")
    return total


def _catalog_priced(offer: Offer, label: str, assumed: list[Assumption]) -> Offer:
    found = (_instance_price if offer.instance else _device_price)(offer, label)
    priced = at_price(offer, found)
    why = f"not stated; {found.source}, {found.as_of}"
    assumed.append(Assumption(f"{label}.price", f"{format_usd(priced.usd_per_hour)}/h", why))
    return priced


def at_price(offer: Offer, found: Price) -> Offer:
    """The offer at a price of the catalogue, which is one machine's, with where it came of."""
    return replace(
        offer,
        usd_per_hour=offer.nodes * found.usd_per_hour,
        price_source=found.source,
        price_as_of=found.as_of,
        price_age_days=age_days(found.as_of),
        price_scaled_from=found.scaled_from,
        price_asked=found.kind in INDICATIVE,
    )


def _instance_price(offer: Offer, label: str) -> Price:
    """What the instance costs; never what its devices cost elsewhere."""
    instance = find_instance(offer.instance)
    found, why = None, "the tables do not have it any more"
    if instance is not None:
        found, why = price_of_instance(instance.provider, instance.listed_as, spot=offer.spot)
    if found is None:
        terms = "spot price" if offer.spot else "price"
        msg = f"{label}: no {terms} of {offer.instance} is known: {why}"
        name = offer.instance.partition(" ")[2]
        hint = (
            f'state it: --gpu "{name}@PRICE"; or --gpu {offer.count}x{offer.device.name}, for what '
            "these devices cost elsewhere; `autotune prices refresh` fetches today's prices"
        )
        raise InputError(msg, hint)
    return found


def _device_price(offer: Offer, label: str) -> Price:
    found = price_for(offer.device.name, offer.per_node, spot=offer.spot)
    if found is None:
        raise _unsold(offer, label)
    return found


def _unsold(offer: Offer, label: str) -> InputError:
    """Nobody sells such a machine, or nobody's price of the device is known."""
    kind, name = "spot price" if offer.spot else "price", offer.device.name
    counts = sold_counts(name, spot=offer.spot)
    machine = name if offer.per_node == 1 else f"{name}:{offer.per_node}"
    hint = (
        f"your own: `--gpu {machine}@0USD/h`; rented: state the price, `--gpu {machine}@2.50USD/h` "
        "or `price: 2.50 USD/h` in the job file"
    )
    if not counts:
        return InputError(f"{label}: no {kind} of {offer.per_node}x {name} is known", hint)
    sold = ", ".join(map(str, counts))
    msg = (
        f"{label}: nobody in the table of prices sells {offer.per_node}x {name} in one machine"
        f"{' on spot' if offer.spot else ''}; sold are {sold}"
    )
    most = counts[-1]
    if offer.per_node > most and not offer.per_node % most:
        each = "" if most == 1 else f"{most}x"
        hint += (
            f'; or several machines: `--gpu "{offer.per_node // most}x{each}{name} over '
            'infiniband-ndr"`'
        )
    return InputError(msg, f"name one of those counts, or {hint}")


def _interrupted(
    offer: Offer, section: HardwareSection, label: str, assumed: list[Assumption]
) -> Offer:
    """A spot offer's rate of interruptions; others have none."""
    if not offer.spot:
        return offer
    if section.interruptions_per_hour is not None:
        return replace(offer, interruptions_per_hour=section.interruptions_per_hour)
    per_day = section.interruptions_per_day
    if per_day is None:
        per_day = SPOT_INTERRUPTIONS_PER_DAY
        why = "not stated; a spot machine is taken back about once in ten days of use"
        per_day *= offer.nodes  # one machine that is taken back stops all
        assumed.append(Assumption(f"{label}.interruptions_per_day", f"{per_day:g}", why))
    return replace(offer, interruptions_per_hour=per_day / HOURS_PER_DAY)
