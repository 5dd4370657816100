"""Lists in every format: devices, models, prices, what a refresh of prices did, runs."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from autotune.catalog.prices.prices import FRESH, price_for
from autotune.catalog.prices.table import LISTED
from autotune.domain.paths import near
from autotune.domain.units import format_count
from autotune.frozen import dataclass
from autotune.report.layout.blocks import Block, Column, Paragraph, Section, Table
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.layout.report import Report
from autotune.report.payload import dumps
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.catalog.prices.prices import Price
    from autotune.domain.device import Device
    from autotune.domain.model import Model


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows under columns; `name` is the key of the rows in JSON.

    shown: what people read instead of all rows, where those are too many for a screen.
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    note: str = ""
    empty: str = "nothing to list"
    shown: tuple[Mapping[str, Any], ...] | None = None

    @classmethod
    def of(
        cls, name: str, columns: tuple[Column, ...], items: Iterable[object],
        note: str = "", empty: str = "nothing to list",
    ) -> Listing:  # fmt: skip
        """A row an item, by what each column reads of it."""
        rows = tuple({column.key: column.value(item) for column in columns} for item in items)
        return cls(name, columns, rows, note, empty)


def listing_payload(listing: Listing) -> dict[str, Any]:
    """The rows under the listing's name, every column in base units."""
    return {"schema_version": SCHEMA_VERSION, listing.name: list(listing.rows)}


def listing_json(listing: Listing) -> str:
    """The listing as JSON."""
    return dumps(listing_payload(listing))


def listing_csv(listing: Listing) -> str:
    """The listing as CSV, with a header even when there are no rows."""
    return rows_csv(listing.rows, [column.key for column in listing.columns])


def listing_sections(listing: Listing) -> list[Section]:
    """The listing for people."""
    if not listing.rows:
        return [Section("", (Paragraph(listing.empty),))]
    titled = [column for column in listing.columns if column.title]
    told = listing.rows if listing.shown is None else listing.shown
    shown = tuple(c for c in titled if any(c.cell(row) for row in told))
    rows = tuple(tuple(column.cell(row) for column in shown) for row in told)
    blocks: tuple[Block, ...] = (Table(shown, rows),)
    if listing.note:
        blocks += (Paragraph(listing.note, "quiet"),)
    return [Section("", blocks)]


MILLION, BILLION = 1e6, 1e9


def devices_listing(devices: Iterable[Device]) -> Listing:
    """Devices with what decides about them: memory, rates, bandwidth, capability."""
    columns = (
        Column("name", "device"),
        Column("vendor"),
        Column("architecture", "architecture"),
        Column("compute_capability", "cc", _capability, right=True),
        Column("memory_driver_bytes", "memory"),
        Column("memory_torch_bytes"),
        Column("memory_bandwidth_bytes_per_s", "TB/s", lambda v: f"{v / 1e12:.2f}", right=True),
        Column("fp32_flop_per_s"),
        Column("tf32_flop_per_s"),
        Column("fp16_flop_per_s", "fp16", _tera, right=True),
        Column("bf16_flop_per_s", "bf16", _tera, right=True),
        Column("matmul_ceiling_fraction", "reached", lambda v: f"{100 * v:.0f}%", right=True),
        Column("tdp_w", "W", lambda v: f"{v:.0f}" if v else "", right=True),
        Column("release_year"),
        Column("aliases"),
        Column("source"),
        Column("notes"),
    )
    note = (
        "fp16 and bf16: dense TFLOP/s with fp32 accumulation, a dash where not native. "
        "reached: the best share of it that matrix products have been seen (or are expected) "
        "to reach."
    )
    return Listing.of("devices", columns, devices, note=note, empty="no device of that name")


def _capability(value: float) -> str:
    return f"{value:.1f}" if value else "-"


def _tera(value: float) -> str:
    return f"{value / 1e12:.3g}" if value else "-"


def models_listing(models: Iterable[Model], parameters: Mapping[str, int]) -> Listing:
    """Models with their exact parameter counts and the shape that decides about memory."""
    columns = (
        Column("name", "model"),
        Column("family", "family"),
        Column(
            "parameters", "params", _parameters, right=True, of=lambda model: parameters[model.name]
        ),
        Column("num_layers", "layers", str, right=True),
        Column("hidden_size", "hidden", str, right=True),
        Column("num_attention_heads"),
        Column("num_kv_heads"),
        Column("vocab_size", "vocab", format_count, right=True),
        Column("max_position_embeddings"),
        Column("num_experts", "experts", lambda v: str(v) if v else "", right=True),
        Column("tied_head"),
        Column("source"),
    )
    note = "Any other decoder: give the folder or file of its config.json as the model."
    return Listing.of("models", columns, models, note=note, empty="no model of that name")


def _parameters(value: int) -> str:
    if value >= BILLION:
        return f"{value / BILLION:.2f} B"
    return f"{value / MILLION:.0f} M"


def runs_listing(runs: Iterable[object]) -> Listing:
    """Runs (of `app.runs.find`), as the folder holds them."""
    columns = (
        Column("run_dir", "run", near, of=lambda run: str(run.path)),
        Column("job", of=lambda run: run.job_name),
        Column("created"),
        Column("finished", of=lambda run: run.answered),
        Column("state"),
        Column("answer", "answer", of=lambda run: run.summary),
    )
    return Listing.of("runs", columns, runs, empty="no runs yet: autotune tune JOB makes one")


def refreshed_listing(found: Iterable[object]) -> Listing:
    """Each provider (of `app.refresh_prices`): fetched, or what it kept and why."""
    columns = (
        Column("provider", "provider"),
        Column("prices", "fetched", str, right=True, of=lambda each: each.rows),
        Column("kept", "kept from", of=lambda each: None if each.rows else each.kept),
        Column("problem", "why none came"),
    )
    note = "A provider that could not be read keeps its last good copy, else the shipped snapshot."
    return Listing.of("refreshed", columns, found, note=note)


MOST_PRICES = 20  # that people are shown of a few devices; of more devices, one each
_NO_PRICE = "no price for a device or instance of that name: `autotune prices` lists the devices"
_PRICE_KINDS = {"marketplace": "asked", "average": "average"}  # else a provider's own price


def prices_listing(prices: Sequence[Price]) -> Listing:
    """Prices of the catalogue, each with where and when it was seen.

    People are shown the newest price of each offer: those that answers use first, then published
    ones, and the cheapest by the GPU first; at most a screen of them.
    """
    columns = (
        Column("device", "device", of=lambda price: price.device_name),
        Column("provider"),
        Column("instance"),
        Column("sold_as", "sold as", of=lambda price: f"{price.provider} {price.instance}"),
        Column("count", "GPUs", str, right=True),
        Column("usd_per_hour", "USD/h", _money, right=True),
        Column("spot_usd_per_hour", "spot", _money, right=True),
        Column("region"),
        Column("as_of", "seen"),
        Column("kind", " ", lambda kind: _PRICE_KINDS.get(kind, "")),
        Column("source"),
        Column("notes"),
        Column("suspicious"),
    )
    every = Listing.of("prices", columns, prices, empty=_NO_PRICE)
    if not prices:
        return every
    told = _first_prices(prices)
    note = "The first line of a device has the price that answers use for that number of GPUs. "
    note += "USD/h is for all GPUs of a line; asked: a marketplace. Yours: --price PRICE."
    if len(told) < len(prices):
        note = f"{len(told)} of {len(prices)} prices. {note} "
        note += "`--format csv` has all, with regions and sources; `autotune prices NAME` those of "
        note += "a device."
    place = {id(price): number for number, price in enumerate(prices)}
    return replace(every, note=note, shown=tuple(every.rows[place[id(each)]] for each in told))


def _first_prices(prices: Sequence[Price]) -> list[Price]:
    """So many of the newest price of each offer as a screen has lines, of every device some."""
    by_device: dict[str, dict[tuple[str, str, int], Price]] = {}
    for price in prices:
        newest = by_device.setdefault(price.device_name, {})
        offer = price.provider, price.instance, price.count
        known = newest.get(offer)
        if not price.suspicious and (known is None or known.as_of < price.as_of):
            newest[offer] = price
    fresh = (date.fromisoformat(max(price.as_of for price in prices)) - FRESH).isoformat()
    each = max(MOST_PRICES // len(by_device), 1)
    ranked = (
        sorted(
            newest.values(),
            key=lambda own: (
                _place_in_use(own),
                own.kind not in LISTED,
                own.as_of < fresh,
                own.per_gpu() or 1e9,
            ),
        )
        for newest in by_device.values()
    )
    return [price for own in ranked for price in own[:each]]


def _place_in_use(price: Price) -> float:
    """The count of devices where an answer for so many takes this price; else beyond them all."""
    used = price_for(price.device_name, price.count)
    same = used and (used.provider, used.instance) == (price.provider, price.instance)
    return price.count if same and used and not used.scaled_from else math.inf


def _money(value: float) -> str:
    return f"{value:,.2f}" if value else ""


LISTING_REPORT = Report(listing_sections, listing_csv)
