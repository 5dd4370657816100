"""What an answer says of itself, held against its own bill. How fast it is decides nothing."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from bench.walk.terminal import WalkError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDED = 0.06  # of a figure that is printed with two digits
PARTS = 1e-6
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([\d.,]+) (ms|s|min|h|d)\b")
_GIB = {"MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_HELD = re.compile(r"expected to hold ([\d.,]+) ([MGT]iB)")
STARTUP = ("load", "prepare", "compile")


def agree(payload: dict[str, Any], text: str = "") -> None:
    """Raise WalkError with every place in which an answer contradicts itself.

    payload: of `--format json`; text: all that was printed of the same answer.
    """
    _refuse([*contradictions(payload), *told_otherwise(payload, text)])


def agree_rows(rows: dict[str, dict[str, Any] | None]) -> None:
    """The same for single configurations, by what they are called."""
    _refuse([f"{name}: {what}" for name, row in rows.items() if row for what in _row(row)])


def _refuse(found: list[str]) -> None:
    if found:
        msg = "the answer contradicts itself:\n  " + "\n  ".join(found)
        raise WalkError(msg)


def contradictions(payload: dict[str, Any]) -> list[str]:
    """What does not agree within the JSON of a tune."""
    rows = [("best", payload["best"]), ("today", payload["today"])]
    rows += [(f"alternative {i}", row) for i, row in enumerate(payload["alternatives"])]
    found = [f"{name}: {what}" for name, row in rows if row for what in _row(row)]
    best = payload["best"]
    if best:
        found += [*_bound(best), *_steps(payload, best), *_tie(payload, best)]
    return found


def _row(row: dict[str, Any]) -> Iterator[str]:
    duration, cost, memory = row["duration_s"], row["cost_usd"], row["memory_bytes"]
    parts = sum(row["time_s"].values())
    if not math.isclose(parts, duration["p50"], rel_tol=PARTS):
        yield f"its parts are {parts:.6g} s, its duration {duration['p50']:.6g} s"
    for name, spread in (("duration", duration), ("cost", cost)):
        if not spread["p10"] <= spread["p50"] <= spread["p90"]:
            yield f"the interval of its {name} is not in order: {spread}"
    usd = duration["p50"] / 3600.0 * row["usd_per_hour"]
    if not math.isclose(usd, cost["p50"], rel_tol=PARTS, abs_tol=1e-12):
        yield f"it costs {cost['p50']:.6g}, at its price {usd:.6g}"
    total = sum(v for k, v in memory.items() if k not in {"total", "usable"})
    if not math.isclose(total, memory["total"], rel_tol=PARTS):
        yield f"its memory is {memory['total']:.6g} bytes, its parts are {total:.6g}"
    if row["verdict"] == "fits" and memory["total"] > memory["usable"]:
        yield "it fits, and needs more memory than there is"
    if not 0.0 <= row["fits_probability"] <= 1.0:
        yield f"the probability that it fits is {row['fits_probability']}"
    held = row.get("reserved_bytes", 0.0)
    if held > memory["usable"] and row["fits_probability"] > SURE:
        yield (
            f"it fits with {row['fits_probability']:.3f}, and its allocator holds {held:.6g} bytes "
            f"of {memory['usable']:.6g}"
        )


SURE = 0.99


def _bound(best: dict[str, Any]) -> Iterator[str]:
    time = best["time_s"]
    shares = {
        "data": time["data_wait"],
        "checkpoint": time["checkpoint"] + time["lost_work"] + time["final_save"],
        "evaluation": time["evaluation"],
        "startup": sum(time[name] for name in STARTUP),
        "training": time["train"],
    }
    largest = max(shares, key=lambda name: shares[name])
    told = best["bound_by"] if best["bound_by"] in shares else "training"
    if shares[told] < shares[largest]:
        yield (
            f"it is bound by {best['bound_by']} ({shares[told]:.6g} s), and {largest} takes "
            f"{shares[largest]:.6g} s"
        )


def _steps(payload: dict[str, Any], best: dict[str, Any]) -> Iterator[str]:
    """What is said of all steps, and of one, against the bill."""
    steps, time = payload["job"]["steps"], best["time_s"]
    all_s = time["train"] + time["data_wait"]
    if steps and not math.isclose(steps * best["step_time_s"], all_s, rel_tol=ROUNDED):
        yield f"{steps} steps of {best['step_time_s']:.6g} s are not the {all_s:.6g} s of its bill"
    for text in payload["reasons"].values():
        if "all steps take" in text:
            told = seconds_of(text.partition("all steps take")[2])
            if told is not None and not math.isclose(told, all_s, rel_tol=ROUNDED):
                yield f"{text!r}, and in the bill they take {all_s:.6g} s"


def _tie(payload: dict[str, Any], best: dict[str, Any]) -> Iterator[str]:
    """A tie is with something that may be as good: its interval holds the pick's median."""
    others = payload["alternatives"]
    medians = [row["duration_s"] for row in others] if payload["tie"] else []
    if payload["tie"] and not any(
        spread["p10"] <= best["duration_s"]["p50"] * (1 + ROUNDED) for spread in medians
    ):
        yield "a tie is said, and nothing may be as good as the pick"
    measured = [row for row in others if row["basis"] == best["basis"] == "measured"]
    if payload["search"]["score"] == "probe" and not payload["misses"] and not payload["tie"]:
        most = best["cost_usd"]["p50"] * (1 - PARTS)
        if any(row["cost_usd"]["p50"] < most for row in measured):
            yield "something that was measured is cheaper than the pick, and no tie is said"


def told_otherwise(payload: dict[str, Any], text: str) -> list[str]:
    """What the text says that the JSON does not."""
    best, plain = payload["best"], " ".join(text.split())
    if not best or not plain:
        return []
    found = []
    usable = best["memory_bytes"]["usable"]
    for amount, unit in _HELD.findall(plain):
        held = float(amount.replace(",", "")) * _GIB[unit]
        if held > usable and ("over 0.99" in plain.partition("Next best")[0] or _sure(best)):
            found.append(
                f"the allocator is expected to hold {amount} {unit} of {usable / 2**30:.1f} GiB, "
                "and it fits with a probability over 0.99"
            )
    return found


def _sure(best: dict[str, Any]) -> bool:
    return bool(best["fits_probability"] > SURE)


def seconds_of(text: str) -> float | None:
    """[s] the first duration of a text."""
    match = _DURATION.search(text)
    return None if match is None else float(match[1].replace(",", "")) * _SECONDS[match[2]]
