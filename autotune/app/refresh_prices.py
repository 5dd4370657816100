"""`autotune prices refresh`: today's prices through gpuhunt, provider by provider.

Each provider's rows are checked and then put in place of its last good copy in one step; a provider
that cannot be read, or whose rows do not hold, keeps what it had.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
import statistics
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from autotune.catalog.devices import load_devices
from autotune.catalog.files import write_whole
from autotune.catalog.hub import OFFLINE
from autotune.catalog.prices.cache import cache_dir, read_cache_file
from autotune.catalog.prices.table import Price, table_text
from autotune.catalog.software import install_command
from autotune.catalog.tables import CatalogDataError
from autotune.domain.errors import InputError, unknown
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

SILENT_S = 30.0  # a server that says nothing for so long is not waited for
# gpuhunt's name -> (ours, what its rows are). Source: gpuhunt 0.1.34, `_internal/catalog.py`.
# RunPod's rows mix secure and community hosts.
PROVIDERS = {
    "aws": ("aws", "list"), "azure": ("azure", "list"), "gcp": ("gcp", "list"),
    "lambdalabs": ("lambda", "list"), "nebius": ("nebius", "list"), "oci": ("oci", "list"),
    "verda": ("verda", "list"), "cloudrift": ("cloudrift", "list"),
    "runpod": ("runpod", "marketplace"), "vastai": ("vast", "marketplace"),
    "lium": ("lium", "marketplace"), "vultr": ("vultr", "list"), "hotaisle": ("hotaisle", "list"),
    "crusoe": ("crusoe", "list"), "digitalocean": ("digitalocean", "list"),
    "jarvislabs": ("jarvislabs", "list"),
}  # fmt: skip
WITHOUT_KEY = (
    "aws", "azure", "gcp", "lambdalabs", "nebius", "oci", "verda", "cloudrift", "runpod", "vastai",
    "lium",
)  # fmt: skip
# Flags of offers on other terms than so many devices by the hour: booked ahead for days, and nodes
# that are only let several at a time. Source: gpuhunt 0.1.34, `providers/gcp.py`, `runpod.py`.
OTHER_TERMS = frozenset({"gcp-dws-calendar-mode", "runpod-cluster"})
# gpuhunt's board -> our devices, the slowest first: where an instance does not say its form, the
# slower board is meant, so that no answer is faster than what arrives.
# Source: names of gpuhunt 0.1.34, `_internal/constraints.py`.
BOARDS: Mapping[str, tuple[str, ...]] = {
    "P100": ("p100-pcie-16gb",), "V100": ("v100-sxm2-16gb", "v100-sxm2-32gb"), "T4": ("t4",),
    "A10": ("a10",), "A10G": ("a10g",), "A40": ("a40",),
    "A100": ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb"),
    "A4000": ("rtx-a4000",), "A5000": ("rtx-a5000",), "A6000": ("rtx-a6000",), "L4": ("l4",),
    "L40": ("l40",), "L40S": ("l40s",), "H100": ("h100-pcie", "h100-sxm"),
    "H100NVL": ("h100-nvl",), "H200": ("h200-sxm",), "H200NVL": ("h200-nvl",),
    "GH200": ("gh200-96gb", "gh200-144gb"), "B200": ("b200",), "B300": ("b300",),
    "GB200": ("gb200",), "GB300": ("gb300",), "RTX2080Ti": ("rtx-2080ti",),
    "RTX3090": ("rtx-3090",), "RTX3090Ti": ("rtx-3090ti",), "RTX4080": ("rtx-4080",),
    "RTX4090": ("rtx-4090",), "RTX5080": ("rtx-5080",), "RTX5090": ("rtx-5090",),
    "RTX6000Ada": ("rtx-6000-ada",), "RTXPRO6000": ("rtx-pro-6000-bw-server",),
    "MI300X": ("mi300x",), "MI325X": ("mi325x",), "MI355X": ("mi355x",),
}  # fmt: skip
# Instances whose boards are SXM. Source: the providers' instance pages: AWS P4/P5/P6, Google
# A2/A3/A4, Azure ND, Oracle's bare metal, Verda's A and H boards ("1H100.80S.30V", "1A100.22V";
# gpuhunt 0.1.34, `providers/verda.py` knows them as SXM alone); elsewhere the name says so.
_SXM = re.compile(
    r"sxm|hbm3|nvlink|^p[456][de]*n?\.|^a[234]-|standard_nd|^bm\.gpu|^\d+[ah]\d00\.[\d.s]+v$",
    re.IGNORECASE,
)
_PCIE = re.compile(r"pcie|standard_nc", re.IGNORECASE)
SAME_MEMORY = 0.15  # advertised, in GB or GiB, against what the driver reports


@dataclass(frozen=True, slots=True)
class Refreshed:
    """One provider: its rows, or why it kept its last good copy. kept: that copy's date."""

    provider: str
    rows: int
    problem: str = ""
    kept: str | None = None
    unreachable: bool = False  # the catalogue behind all providers did not answer


def refresh_prices(
    providers: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None
) -> list[Refreshed]:
    """Fetch and keep the prices of each provider. Raises InputError when none could be had."""
    names = _wanted(providers)
    if os.environ.get(OFFLINE):
        msg = f"{OFFLINE} is set, so no prices are fetched; nothing was changed"
        raise InputError(msg, f"unset {OFFLINE} to refresh them")
    gpuhunt = _gpuhunt()
    found: list[Refreshed] = []
    with _quiet_network():
        for name in names:
            progress(f"prices of {PROVIDERS[name][0]}")
            found.append(_refresh(gpuhunt, name))
            if found[-1].unreachable:
                break
    if not any(each.rows for each in found):
        kept = [f"{each.provider} of {each.kept}" for each in found if each.kept]
        problems = "; ".join(dict.fromkeys(each.problem for each in found))
        msg = f"no provider's prices could be fetched ({problems[:400]}); nothing was changed"
        stays = f"the last good copies stay: {', '.join(kept)}" if kept else "the snapshot stays"
        raise InputError(msg, f"{stays}; try again with a network")
    return found


def _wanted(providers: Sequence[str]) -> list[str]:
    """The library's names of what was asked for, by its or our names."""
    ours = {mine: name for name, (mine, _) in PROVIDERS.items()}
    names = []
    for text in providers:
        key = text.strip().casefold()
        if key not in PROVIDERS and key not in ours:
            what = "provider"
            hint = f"providers: {', '.join(sorted(ours))}"
            raise unknown(what, text[:60], [*ours, *PROVIDERS], hint)
        names.append(key if key in PROVIDERS else ours[key])
    return list(dict.fromkeys(names)) or list(WITHOUT_KEY)


def _gpuhunt() -> ModuleType:
    try:
        return importlib.import_module("gpuhunt")
    except ImportError:
        msg = "prices are refreshed through gpuhunt, which is not installed"
        hint = f"{install_command('prices')}; or state prices in the job"
        raise InputError(msg, hint) from None


@contextlib.contextmanager
def _quiet_network() -> Iterator[None]:
    """No wait without end, and no log lines of a library between ours."""
    before, logger = socket.getdefaulttimeout(), logging.getLogger("gpuhunt")
    level = logger.level
    socket.setdefaulttimeout(SILENT_S)
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
        logger.setLevel(level)


def _refresh(gpuhunt: ModuleType, name: str) -> Refreshed:
    provider, kind = PROVIDERS[name]
    path = cache_dir() / f"{provider}.csv"
    try:
        items = gpuhunt.query(provider=name, min_gpu_count=1)
        prices = prices_of(items, provider, kind, datetime.now(UTC).date().isoformat())
        if not prices:
            return Refreshed(provider, 0, f"{provider}: no offer came", _kept(path))
        _store(path, prices)
    except (CatalogDataError, KeyError) as error:
        return Refreshed(provider, 0, f"{provider}: {_short(error)}", _kept(path))
    except OSError as error:
        where = error.filename or path
        why = f"{provider}: {error.strerror or _short(error)} ({where})"
        return Refreshed(provider, 0, why, _kept(path))
    except Exception as error:  # noqa: BLE001 - what a provider's code raises is its failure alone
        everywhere = type(error).__name__ == "GPUHuntError"
        return Refreshed(provider, 0, f"{provider}: {_short(error)}", _kept(path), everywhere)
    return Refreshed(provider, len(prices))


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__


def _kept(path: Path) -> str | None:
    """The date of the last good copy; None where there is none that holds."""
    try:
        return max(price.as_of for price in read_cache_file(path))
    except (OSError, CatalogDataError, KeyError, ValueError):
        return None


def _store(path: Path, prices: Sequence[Price]) -> None:
    """Write beside the old file, read that back as any answer would, and only then replace it."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def check(fresh: Path) -> None:
        read_cache_file(fresh, provider=path.stem)

    write_whole(path, table_text(prices), check=check)


def prices_of(items: Iterable[Any], provider: str, kind: str, today: str) -> list[Price]:
    """Offers as price rows: one for each instance, device and count.

    The price on demand is the cheapest region's (of a marketplace the median ask's), the one on
    spot the median. Offers of boards that the catalogue lacks, and offers without a sensible price,
    are left out.
    """
    groups: dict[tuple[str, str, int], list[Any]] = {}
    for item in items:
        device = device_of(item)
        price = getattr(item, "price", None)
        if OTHER_TERMS & set(getattr(item, "flags", ())):
            continue
        if device is not None and isinstance(price, int | float) and price > 0:
            asked = kind == "marketplace"  # single asks: their numbers mean nothing tomorrow
            instance = "offers" if asked else str(item.instance_name)[:80]
            key = (instance, device, int(item.gpu_count))
            groups.setdefault(key, []).append(item)
    return [_row(key, group, provider, kind, today) for key, group in sorted(groups.items())]


def _row(
    key: tuple[str, str, int], group: Sequence[Any], provider: str, kind: str, today: str
) -> Price:
    instance, device, count = key
    demand = [item for item in group if not item.spot]
    demand.sort(key=lambda item: float(item.price))
    taken = demand[(len(demand) - 1) // 2 if kind == "marketplace" else 0] if demand else None
    usd = float(taken.price) if taken is not None else 0.0
    asks = [float(item.price) for item in group if item.spot]
    spot = statistics.median(asks) if asks else None
    if spot is not None and usd and spot >= usd:
        spot = None  # no discount worth an interruption
    region = str(getattr(taken or group[0], "location", "") or "any")[:60]
    return Price(
        provider=provider,
        instance=_printable(instance),
        device_name=device,
        count=count,
        usd_per_hour=usd,
        spot_usd_per_hour=spot,
        region="any" if kind == "marketplace" else _printable(region),
        as_of=today,
        date_kind="stated",
        kind=kind,
        source="gpuhunt, " + ("the median" if kind == "marketplace" else "the cheapest region"),
    )


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable()).strip() or "unnamed"


def device_of(item: Any) -> str | None:  # noqa: ANN401 - gpuhunt's offer
    """Our name of an offer's device, by board, memory and what the instance says of its form."""
    boards = {name.casefold(): devices for name, devices in BOARDS.items()}
    names = boards.get(str(item.gpu_name or "").casefold().replace(" ", ""))
    count, memory = item.gpu_count, item.gpu_memory
    if names is None or not isinstance(count, int) or count < 1:
        return None
    devices = load_devices()
    if memory:
        names = tuple(
            name
            for name in names
            if abs(devices[name].memory_driver_bytes / 2**30 / float(memory) - 1) <= SAME_MEMORY
        )
    if not names or (len(names) > 1 and not memory):
        return None
    instance = str(item.instance_name)
    fast = _SXM.search(instance) and not _PCIE.search(instance)
    return names[-1] if fast else names[0]
