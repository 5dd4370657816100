"""`autotune compare` as a JSON payload: rows as everywhere, and where each stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.answer.contract import copied
from autotune.domain.config import SHARDED
from autotune.domain.units import HOUR_S
from autotune.frozen import dataclass
from autotune.report.layout.csv_rows import flattened, rows_csv
from autotune.report.payload import decisive, facts_of, job_payload, machine_of, row_payload
from autotune.report.schema import SCHEMA_VERSION, Row

if TYPE_CHECKING:
    from autotune.domain.answer.comparison import (
        Compared,
        Comparison,
        Comparisons,
        NotFitting,
        OneDevice,
        Scaling,
        SpotTerms,
    )
    from autotune.domain.answer.limits import LimitOdds, Miss, ShortRows
    from autotune.domain.device import Offer
    from autotune.domain.outcome import Estimated

Payload = dict[str, Any]


def comparison_payload(found: Comparisons) -> Payload:
    """The whole answer. `rows` are cheapest first, over all variants where there are several."""
    parts = [_part(part) for part in found.parts]
    rows = sorted((row for part in parts for row in part["rows"]), key=_by_cost)
    within = [part["cheapest_within_limits"] for part in parts if part["cheapest_within_limits"]]
    several = len(parts) > 1
    return {
        "schema_version": SCHEMA_VERSION,
        "job": parts[0]["job"],
        "lengths_known": parts[0]["lengths_known"],
        "assumed": parts[0]["assumed"],
        "rows": rows,
        "infeasible": [item for part in parts for item in part["infeasible"]],
        "cheapest": rows[0] if rows else None,
        "fastest": min(rows, key=_by_time, default=None),
        "cheapest_within_limits": min(within, key=_at_worst, default=None),
        "leads": min(
            (part["leads"] for part in parts if part["leads"]), key=_at_worst, default=None
        ),
        "tiebreak": parts[0]["tiebreak"] if not several else None,
        "may_be_better": parts[0]["may_be_better"] if not several else [],
        "tie": any(part["tie"] for part in parts),
        "variants": [
            {key: part[key] for key in _OF_VARIANT} for part in (parts if several else [])
        ],
        "scaling": [_scaling(line) for line in found.scaling],
        "search": {
            "priced": sum(part.priced for part in found.parts),
            "space_size": sum(part.space_size for part in found.parts),
            "wall_seconds": found.wall_seconds,
            "fidelity": found.fidelity,
        },
        "contradictions": [text for part in found.parts for text in part.contradictions],
        "warnings": list(dict.fromkeys(w for part in found.parts for w in part.warnings)),
        "decisive": decisive([w for part in found.parts for w in part.warnings]),
    }


_OF_VARIANT = (
    "variant", "job", "lengths_known", "cheapest", "fastest", "cheapest_within_limits", "leads",
    "tiebreak", "may_be_better", "tie",
)  # fmt: skip


def _by_cost(row: Row) -> tuple[float, float]:
    return row.cost_usd.p50, row.duration_s.p50


def _at_worst(row: Row) -> tuple[float, float]:
    return row.cost_usd.p50 * row.caution, row.duration_s.p50 * row.caution


def _by_time(row: Row) -> tuple[float, float]:
    return row.duration_s.p50, row.cost_usd.p50


def _part(part: Comparison) -> Payload:
    by_row = [(found, _row(found, part.variant)) for found in part.rows]

    def payload_of(wanted: Compared | None) -> ComparedRow | None:
        return next((row for found, row in by_row if found is wanted), None)

    return {
        "variant": part.variant,
        "job": job_payload(part.job),
        "lengths_known": bool(part.job.lengths.known),
        "assumed": part.job.assumed,
        "rows": [row for _, row in by_row],
        "infeasible": [_infeasible(item, part.variant) for item in part.infeasible],
        "cheapest": payload_of(part.cheapest),
        "fastest": payload_of(part.fastest),
        "cheapest_within_limits": payload_of(part.within),
        "leads": payload_of(part.leads),
        "tiebreak": part.tiebreak,
        "may_be_better": [row for found, row in by_row if found in part.may_be_better],
        "tie": part.tie,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow(Row):
    """A row of the comparison: the best on one machine, and where it stands among the others."""

    variant: str | None
    short_rows: ShortRows | None
    limits: tuple[LimitOdds, ...]
    misses: tuple[Miss, ...]
    tie: bool  # with the cheapest
    could_be_cheapest: bool
    flip_usd_per_hour: float | None  # the price at which it would be the cheapest
    sessions: int | None
    full_usd_per_hour: float | None  # of the whole machine, where the row is a share of one
    full_cost_usd: float | None
    month_usd: float | None
    one_device: dict[str, Any] | None
    sharding_needed: bool | None  # neither one device nor replicas hold the model
    shardings: tuple[dict[str, Any], ...]
    spot_terms: SpotTerms | None


def _row(found: Compared, variant: str) -> ComparedRow:
    offer = found.row.offer
    full = offer.full_usd_per_hour
    return copied(
        ComparedRow,
        row_payload(found.row),
        found,
        offer,
        variant=variant or None,
        full_cost_usd=None if full is None else full * found.row.duration_s.p50 / HOUR_S,
        one_device=_one_device(found.one_device),
        sharding_needed=_sharding_needed(found),
        shardings=tuple({"sharding": split.sharding, **_bill(split.row)} for split in found.splits),
        spot_terms=found.spot,
    )


def _bill(row: Estimated | None) -> Payload:
    return {
        "fits": row is not None,
        "duration_s": row.duration_s.p50 if row else None,
        "cost_usd": row.cost_usd.p50 if row else None,
    }


def _one_device(alone: OneDevice | None) -> Payload | None:
    if alone is None:
        return None
    return {**_bill(alone.row), **facts_of(alone, "required_bytes", "available_bytes")}


def _sharding_needed(found: Compared) -> bool | None:
    """Whether the model must be split to fit: neither one device nor replicas hold it."""
    if not found.splits:
        return None
    whole = any(split.row for split in found.splits if split.sharding not in SHARDED)
    return not whole and (found.one_device is None or found.one_device.row is None)


def _infeasible(item: NotFitting, variant: str) -> Payload:
    return {
        "variant": variant or None,
        **_machine(item.offer),
        **facts_of(item, "reason", "short_of", "required_bytes", "available_bytes"),
    }


def _machine(offer: Offer) -> Payload:
    found = machine_of(offer)
    keys = ("device", "device_count", "instance", "spot", "nodes", "network")
    return {key: found[key] for key in keys if key in found}


def _scaling(line: Scaling) -> Payload:
    return {
        **_machine(line.offer),
        "of": line.label or None,
        "rows": line.sizes,
        **facts_of(line, "fixed_s", "s_per_row", "fixed_usd", "usd_per_row"),
        "largest_deviation": line.off,
    }


def comparison_csv(payload: Payload) -> str:
    """One line a row of the comparison, then one a machine that does not hold the job."""
    rows = [flattened(_plain(row)) for row in payload["rows"]]
    return rows_csv([*rows, *(flattened(each) for each in payload["infeasible"])])


def _plain(row: ComparedRow) -> Payload:
    """A row whose lists are text."""
    return {
        "variant": row["variant"],
        **row,
        "limits": [f"{each['limit']} {each['probability']:.3f}" for each in row["limits"]],
        "misses": [miss["limit"] for miss in row["misses"]],
        "shardings": [split["sharding"] for split in row["shardings"] if split["fits"]],
    }
