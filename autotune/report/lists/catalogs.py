"""Lists in every format: devices, models, prices, what a refresh of prices did, runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from autotune.domain.paths import near
from autotune.domain.units import format_count
from autotune.frozen import dataclass
from autotune.report.layout.blocks import Block, Column, Paragraph, Section, Table
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.layout.report import Report
from autotune.report.payload import dumps
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from autotune.catalog.prices.prices import Price
    from autotune.domain.device import Device
    from autotune.domain.model import Model


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows under columns; `name` is the key of the rows in JSON."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    note: str = ""
    empty: str = "nothing to list"


def listing_payload(listing: Listing) -> dict[str, Any]:
    """The rows under the listing's name, every column in base units."""
    keys = [column.key for column in listing.columns]
    rows = [{key: row[key] for key in keys} for row in listing.rows]
    return {"schema_version": SCHEMA_VERSION, listing.name: rows}


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
    shown = tuple(c for c in titled if any(c.cell(row) for row in listing.rows))
    rows = tuple(tuple(column.cell(row) for column in shown) for row in listing.rows)
    blocks: tuple[Block, ...] = (Table(shown, rows),)
    if listing.note:
        blocks += (Paragraph(listing.note, "quiet"),)
    return [Section("", blocks)]


MILLION, BILLION = 1e6, 1e9


class RunLike(Protocol):
    """What a line of `autotune runs` needs."""

    @property
    def path(self) -> Path:
        """The run's folder."""
        ...

    @property
    def job_name(self) -> str:
        """The job's name."""
        ...

    @property
    def created(self) -> str:
        """ISO date and time."""
        ...

    @property
    def answered(self) -> bool:
        """Whether it holds an answer."""
        ...

    @property
    def state(self) -> str:
        """Answered, running, failed, unfinished or damaged."""
        ...

    @property
    def summary(self) -> str:
        """The answer in a few words, or why there is none."""
        ...


def devices_listing(devices: Iterable[Device]) -> Listing:
    """Devices with what decides about them: memory, rates, bandwidth, capability."""
    rows = tuple(_device_row(device) for device in devices)
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
    return Listing("devices", columns, rows, note, "no device of that name")


def _device_row(device: Device) -> dict[str, Any]:
    names = (
        "name", "vendor", "architecture", "compute_capability", "memory_driver_bytes",
        "memory_torch_bytes", "memory_bandwidth_bytes_per_s", "fp32_flop_per_s",
        "tf32_flop_per_s", "fp16_flop_per_s", "bf16_flop_per_s", "matmul_ceiling_fraction",
        "tdp_w", "release_year", "source", "notes",
    )  # fmt: skip
    return {name: getattr(device, name) for name in names} | {"aliases": list(device.aliases)}


def _capability(value: float) -> str:
    return f"{value:.1f}" if value else "-"


def _tera(value: float) -> str:
    return f"{value / 1e12:.3g}" if value else "-"


def models_listing(models: Iterable[Model], parameters: Mapping[str, int]) -> Listing:
    """Models with their exact parameter counts and the shape that decides about memory."""
    rows = tuple(
        {
            "name": model.name,
            "family": model.family,
            "parameters": parameters[model.name],
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "num_attention_heads": model.num_attention_heads,
            "num_kv_heads": model.num_kv_heads,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_position_embeddings,
            "num_experts": model.num_experts,
            "tied_head": model.tied_head,
            "source": model.source,
        }
        for model in models
    )
    columns = (
        Column("name", "model"),
        Column("family", "family"),
        Column("parameters", "params", _parameters, right=True),
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
    return Listing("models", columns, rows, note, "no model of that name")


def _parameters(value: int) -> str:
    if value >= BILLION:
        return f"{value / BILLION:.2f} B"
    return f"{value / MILLION:.0f} M"


def runs_listing(runs: Iterable[RunLike]) -> Listing:
    """Runs, as the folder holds them."""
    rows = tuple(
        {
            "run_dir": str(run.path),
            "job": run.job_name,
            "created": run.created,
            "finished": run.answered,
            "state": run.state,
            "answer": run.summary,
        }
        for run in runs
    )
    columns = (
        Column("run_dir", "run", near),
        Column("job"),
        Column("created"),
        Column("finished"),
        Column("state"),
        Column("answer", "answer"),
    )
    return Listing("runs", columns, rows, empty="no runs yet: autotune tune JOB makes one")


class RefreshedLike(Protocol):
    """What a line of `autotune prices refresh` needs."""

    @property
    def provider(self) -> str:
        """The provider."""
        ...

    @property
    def rows(self) -> int:
        """Prices that are in place now; 0 when the old ones stayed."""
        ...

    @property
    def problem(self) -> str:
        """Why none came."""
        ...

    @property
    def kept(self) -> str | None:
        """The date of the last good copy, where it stayed."""
        ...


def refreshed_listing(found: Iterable[RefreshedLike]) -> Listing:
    """Each provider: fetched, or what it kept and why."""
    rows = tuple(
        {
            "provider": each.provider,
            "prices": each.rows,
            "kept": each.kept if not each.rows else None,
            "problem": each.problem,
        }
        for each in found
    )
    columns = (
        Column("provider", "provider"),
        Column("prices", "fetched", str, right=True),
        Column("kept", "kept from"),
        Column("problem", "why none came"),
    )
    note = "A provider that could not be read keeps its last good copy, else the shipped snapshot."
    return Listing("refreshed", columns, rows, note)


def prices_listing(prices: Iterable[Price]) -> Listing:
    """Prices of the catalogue, each with where and when it was seen."""
    names = (
        "provider", "instance", "count", "usd_per_hour", "spot_usd_per_hour", "region", "as_of",
        "kind", "source", "notes", "suspicious",
    )  # fmt: skip
    rows = tuple(
        {"device": price.device_name}
        | {name: getattr(price, name) for name in names}
        | {"sold_as": f"{price.provider} {price.instance}"}
        for price in prices
    )
    columns = (
        Column("device", "device"),
        Column("provider"),
        Column("instance"),
        Column("sold_as", "instance"),
        Column("count", "GPUs", str, right=True),
        Column("usd_per_hour", "USD/h", _money, right=True),
        Column("spot_usd_per_hour", "spot", _money, right=True),
        Column("region"),
        Column("as_of", "as of"),
        Column("kind", "kind"),
        Column("source"),
        Column("notes"),
        Column("suspicious", "doubt", lambda why: "yes" if why else ""),
    )
    note = (
        "USD/h is for all GPUs of the instance; doubtful prices (--format json says why) are never "
        "taken by default. A price in the job file or --price wins over these."
    )
    return Listing("prices", columns, rows, note, "no price for a device or instance of that name")


def _money(value: float) -> str:
    return f"{value:,.2f}" if value else ""


LISTING_REPORT = Report(listing_sections, listing_csv)
