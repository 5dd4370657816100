"""Instances by the names that clouds give them: which devices, how many, in which host.

`data/instances.csv` holds what the providers document; any other instance with a price is known by
its row. What an instance costs is the table of prices' to say.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.devices import find_device, known_device
from autotune.catalog.prices.cache import cached_prices
from autotune.catalog.prices.prices import load_prices
from autotune.catalog.tables import DATA, CatalogDataError, names, number, read_rows
from autotune.domain.errors import InputError, close_matches, did_you_mean
from autotune.domain.units import GIB
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.catalog.prices.cache import Cached

HOW_TO_NAME = (
    "`autotune prices` lists instances with their prices; a machine that is not listed is its "
    'devices with their price: --gpu "8xh100@24USD/h"'
)
# How the providers form their names, to say whose an unknown one would be. Source: the names
# themselves, in instances.csv and prices.csv.
_FORMS = (
    ("aws", r"(?:ml\.)?[a-z]+[0-9][a-z0-9-]*\.(?:[0-9]*x?large|metal)"),
    ("gcp", r"[a-z][0-9][a-z]?-[a-z]+(?:-[a-z]+)*-[0-9]+g?"),
    ("azure", r"(?:standard_)?n[cdv][0-9]+[a-z0-9_]*"),
    ("lambda", r"gpu_[0-9]+x_\w+"),
    ("oci", r"(?:vm|bm)\.gpu[\w.-]*"),
    ("nebius", r"gpu-[a-z0-9-]+[ _][0-9]+gpu[\w-]*"),
    ("verda", r"[0-9]+[a-z]+[0-9]+[a-z0-9]*(?:\.[0-9]+[sv])+"),
)
# Free machines of notebook services, by how their names begin. Source: Colaboratory's FAQ ("at most
# 12 hours") and its panel of resources; Kaggle, technical specifications of notebooks.
_NOTEBOOKS = {
    "colab": ("t4", 2, "12.7GiB", "12h"),
    "kaggle": ("2xt4", 4, "29GiB", "12h"),
}
_BEHIND = re.compile(r"([^()]+) \(([^()]+)\)")
_MOST_NAMED = 16


@dataclass(frozen=True, slots=True)
class Instance:
    """One kind of rented machine. Its host is not known where only a price row names it."""

    provider: str
    name: str
    listed_as: tuple[str, ...]  # how the tables of prices call it
    device: str
    count: int
    vcpus: int | None = None
    ram_bytes: float | None = None
    source: str = ""

    @property
    def label(self) -> str:
        """Provider and name: "aws p4d.24xlarge"."""
        return f"{self.provider} {self.name}"


def find_instance(text: str) -> Instance | None:
    """The instance of that name, with or without its provider ("aws p4d.24xlarge"); None if none.

    Case, blanks, hyphens and Azure's "Standard_" do not matter; as printed behind its devices,
    "a100-sxm4-40gb (aws p4d.24xlarge)", it is read too. Raises InputError where several providers
    have one of that name on different devices.
    """
    table, printed = _by_key(cached_prices()), _BEHIND.fullmatch(text.strip())
    found = table.get(_key(text), ())
    if not found and printed:
        found = table.get(_key(printed[2]), ())
        if found and find_device(printed[1]).name not in {each.device for each in found}:
            msg = f'"{text[:80]}": {found[0].label} has {found[0].count}x {found[0].device}'
            raise InputError(msg, "leave one of the two names out")
    if len({(each.device, each.count) for each in found}) > 1:
        listed = ", ".join(f"{each.label} ({each.count}x {each.device})" for each in found)
        msg = f'"{text}" is the name of several instances: {listed}'
        raise InputError(msg, "write the provider before it")
    return found[0] if found else None


def instance_names(provider: str = "") -> tuple[str, ...]:
    """Names of all instances, or of one provider's."""
    known = _all(cached_prices())
    return tuple(each.name for each in known if not provider or each.provider == provider)


def unknown_instance(text: str) -> InputError | None:
    """The error for a name that has a provider's form, or names one; None where it does neither."""
    bare = text.strip()
    called = _key(bare).removeprefix("google")
    service = next((name for name in _NOTEBOOKS if called.startswith(name)), None)
    if service is not None:
        devices, cores, ram, hours = _NOTEBOOKS[service]
        msg = f'"{bare[:80]}" is a service for notebooks, not a machine'
        host = f"--set host.cores={cores} --set host.ram={ram} --set limits.max_session={hours}"
        return InputError(msg, f"its free one is --gpu {devices}@0USD/h {host}")
    of_provider = _of_provider(bare)
    if of_provider is not None:
        return of_provider
    forms = (name for name, form in _FORMS if re.fullmatch(form, bare, re.IGNORECASE))
    provider = next(forms, None)
    if provider is None:
        return None
    ours = instance_names(provider)
    near = close_matches(bare, ours) or close_matches(bare, instance_names())
    msg = f'unknown instance "{text[:80]}"'
    if bare.casefold().startswith("ml."):
        msg += ": names with ml. are SageMaker's, which costs more than the machine alone"
    msg += did_you_mean(near)
    kinds = list(
        dict.fromkeys(name.partition(".")[0] if provider == "aws" else name for name in ours)
    )
    more = f" and {len(kinds) - _MOST_NAMED} more" if len(kinds) > _MOST_NAMED else ""
    known = f"known of {provider}: {', '.join(kinds[:_MOST_NAMED])}{more}"
    return InputError(msg, f"{known}; {HOW_TO_NAME}")


def _of_provider(text: str) -> InputError | None:
    """The error for a device with a provider's name around it: "runpod 4090"; else None."""
    words, prices = text.split(), load_prices()
    sellers = {_key(price.provider): price.provider for price in prices}
    named = [sellers[_key(word)] for word in words if _key(word) in sellers]
    device = known_device(" ".join(word for word in words if _key(word) not in sellers))
    if len(named) != 1 or device is None:
        return None
    asked = [
        price.usd_per_hour
        for price in prices
        if (price.provider, price.device_name, price.count) == (named[0], device, 1)
        and price.usd_per_hour
    ]
    msg = f'"{text[:80]}": a device is named without who rents it out, with the price there'
    stated = f"--gpu {device}@{asked[0] if asked else 'PRICE'}USD/h"
    return InputError(msg, f"{stated}; `autotune prices {device} --provider {named[0]}` lists them")


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold().replace("standard_", ""))


@lru_cache(maxsize=1)
def _documented() -> tuple[Instance, ...]:
    found = tuple(
        Instance(
            provider=row["provider"],
            name=row["instance"],
            listed_as=(row["instance"], *names(row, "listed_as")),
            device=row["device"],
            count=int(number(row, "count")),
            vcpus=int(number(row, "vcpus")),
            ram_bytes=number(row, "ram_gib") * GIB,
            source=f"{row['source']}; entered {row['entered']}",
        )
        for row in read_rows(DATA / "instances.csv")
    )
    if any(each.count < 1 for each in found):
        msg = "instances.csv: an instance without a device"
        raise CatalogDataError(msg)
    return found


@lru_cache(maxsize=4)
def _all(cached: Cached) -> tuple[Instance, ...]:  # noqa: ARG001 - what load_prices reads
    """Those documented, and those that only a price row names: one device and count each."""
    listed = {(each.provider, _key(name)) for each in _documented() for name in each.listed_as}
    rows: dict[tuple[str, str], set[tuple[str, str, int]]] = {}
    for price in load_prices():
        key = (price.provider, _key(price.instance))
        if key not in listed and any(character.isdigit() for character in price.instance):
            rows.setdefault(key, set()).add((price.instance, price.device_name, price.count))
    more = (_only_priced(provider, said) for (provider, _), said in rows.items())
    return (*_documented(), *(each for each in more if each is not None))


def _only_priced(provider: str, said: set[tuple[str, str, int]]) -> Instance | None:
    """What price rows say of one name; None where they do not agree on what it is."""
    if len({(device, count) for _, device, count in said}) > 1:
        return None
    name, device, count = min(said)
    names_said = tuple(sorted({each for each, _, _ in said}))
    return Instance(provider, name.partition(" (")[0], names_said, device, count)


@lru_cache(maxsize=4)
def _by_key(cached: Cached) -> dict[str, tuple[Instance, ...]]:
    table: dict[str, tuple[Instance, ...]] = {}
    for each in _all(cached):
        for key in {_key(name) for name in (each.name, *each.listed_as)}:
            for full in (key, _key(each.provider) + key):
                table[full] = (*table.get(full, ()), each)
    return table
