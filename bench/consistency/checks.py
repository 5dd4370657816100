"""Whether an answer agrees with itself: `python -m bench.consistency ANSWER.json [REPORT...]`.

Every figure that follows from others is worked out again from them, and every sentence about a
figure is held against it. Reports are the text, Markdown or HTML that was made of the answer.
Prints one line a contradiction and leaves with 1 where there is any.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.consistency.lengths import lengths_agree
from bench.consistency.limits import limits_agree, missed, misses_follow, odds_follow
from bench.consistency.said import said

if TYPE_CHECKING:
    from collections.abc import Iterator

Payload = dict[str, Any]
CLOSE = 1e-6  # relative: what only the order of additions makes
TIE = 0.01  # of the objective, as the choice has it: within it the simplest is taken
FEASIBLE, SAFE = 0.9, 0.95
CERTAIN = 0.05  # chance of fitting up to which a failure may be called certain
IN_TRAINING = ("compute", "bandwidth", "launch", "communication")
FIRST_BATCH_S = 120.0  # [s] the loader's start, which is waiting and no step
AT_RISK = 0.8  # of usable memory, from which on a need within it may yet be too close


def contradictions(payload: Payload) -> list[str]:
    """What an answer of `tune` or `estimate` says that its other figures deny."""
    found = [text for name, row in rows_of(payload) for text in _of_row(name, row, payload)]
    if "best" in payload:
        found += [text for check in _WHOLE for text in check(payload)]
    if "best" in payload or "row" in payload:
        found += [*limits_agree(payload), *lengths_agree(payload)]
    if "cheapest" in payload:
        found += _comparison(payload)
    return found


def rows_of(payload: Payload) -> Iterator[tuple[str, Payload]]:
    """Every priced row of an answer, by where it stands."""
    for name in ("row", "best", "today"):
        if payload.get(name):
            yield name, payload[name]
    for name in ("alternatives", "pareto", "machines", "beyond", "rows"):
        for i, row in enumerate(payload.get(name) or []):
            yield f"{name}[{i}]", row


def same(one: float, other: float, tolerance: float = CLOSE) -> bool:
    """Whether two figures are one, whatever their size."""
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-9)


def _of_row(name: str, row: Payload, payload: Payload) -> Iterator[str]:
    for check in (_bill, _order, _steps, _bound, _money, _memory, _verdict, _measured):
        for text in check(row, payload):
            yield f"{name}: {text}"


def _bill(row: Payload, _: Payload) -> Iterator[str]:
    total = sum(row["time_s"].values())
    if not same(total, row["duration_s"]["p50"]):
        yield f"parts of the time sum to {total}, and it takes {row['duration_s']['p50']}"
    if min(row["time_s"].values()) < 0:
        yield "a part of the time is negative"
    saves, seconds = row["checkpoints"], row["time_s"]["checkpoint"]
    if (saves == 0) != (seconds == 0):
        yield f"{saves} checkpoints take {seconds} s"


def _order(row: Payload, _: Payload) -> Iterator[str]:
    for name in ("duration_s", "cost_usd"):
        own = row[name]
        if not own["p10"] <= own["p50"] <= own["p90"]:
            yield f"{name} is not in order: {own}"


def _steps(row: Payload, payload: Payload) -> Iterator[str]:
    steps = steps_of(row, payload)
    if steps is None:
        return
    parts, each = row["time_s"], row["step_time_s"]
    beside = parts["train"] + parts["data_wait"] - steps * each
    if (
        not -CLOSE * parts["train"] - 1e-9
        <= beside
        <= min(FIRST_BATCH_S, parts["data_wait"] + 1e-9)
    ):
        yield f"{steps} steps of {each} s are {steps * each} s, and training takes {parts['train']}"
    every = row["config"]["checkpoint_every_steps"]
    if row["checkpoints"] != math.ceil(steps / every):
        yield f"a save every {every} of {steps} steps is not {row['checkpoints']} saves"
    tokens = row["tokens_per_s"] * each * steps
    if (
        payload["job"]["lengths_known"]
        and each
        and not same(tokens, payload["job"]["tokens"], 0.02)
    ):
        yield f"tokens/s over all steps are {tokens} tokens, and the job has others"


def steps_of(row: Payload, payload: Payload) -> int | None:
    """Steps of a row that makes the job's global batch; None for today's own batch."""
    job, config = payload["job"], row["config"]
    split = config["micro_batch_size"] * config["gradient_accumulation_steps"]
    own = split * row["device_count"]
    return int(job["steps"]) if own == job["global_batch_size"] else None


def shares_of(row: Payload) -> dict[str, float]:
    """[s] of the bill by what may bound a run."""
    parts = row["time_s"]
    return {
        "training": parts["train"],
        "data": parts["data_wait"],
        "checkpoint": parts["checkpoint"] + parts["lost_work"] + parts["final_save"],
        "evaluation": parts["evaluation"],
        "startup": parts["load"] + parts["prepare"] + parts["compile"],
    }


def _bound(row: Payload, _: Payload) -> Iterator[str]:
    shares, bound = shares_of(row), row["bound_by"]
    own = shares["training" if bound in IN_TRAINING else bound]
    most = max(shares, key=lambda name: shares[name])
    if own < shares[most] * (1 - CLOSE):
        total = max(sum(shares.values()), 1e-12)
        yield f"bound by {bound}, and {most} is {shares[most] / total:.0%} of the time"


def _money(row: Payload, _: Payload) -> Iterator[str]:
    for q in ("p10", "p50", "p90"):
        cost = row["duration_s"][q] / 3600.0 * row["usd_per_hour"]
        if not same(cost, row["cost_usd"][q]):
            yield f"cost {q} is {row['cost_usd'][q]}, time times price is {cost}"


def _memory(row: Payload, _: Payload) -> Iterator[str]:
    parts = {k: v for k, v in row["memory_bytes"].items() if k not in {"total", "usable"}}
    if not same(sum(parts.values()), row["memory_bytes"]["total"]):
        yield "parts of the memory do not sum to the total"
    if min(parts.values()) < 0:
        yield "a part of the memory is negative"


def _verdict(row: Payload, _: Payload) -> Iterator[str]:
    total, usable = row["memory_bytes"]["total"], row["memory_bytes"]["usable"]
    chance, verdict = row["fits_probability"], row["verdict"]
    feasible = total <= usable and chance >= FEASIBLE
    if feasible != (verdict == "fits"):
        yield f"verdict {verdict} with {total} of {usable} bytes at {chance}"
    if not 0 <= chance <= 1 or (verdict == "certain_oom" and chance > CERTAIN):
        yield f"verdict {verdict} at probability {chance}"
    if bool(row["risk"]) != (row["crowded"] or chance < SAFE):
        yield f"risk {row['risk']!r} at probability {chance}, crowded {row['crowded']}"
    if row["crowded"] and chance > surest(crowded=True):
        yield f"its cache would fill the memory, and it is said to fit with {chance}"
    if chance > surest(crowded=False):
        yield f"probability {chance} is more than the tested claims bear"


def surest(*, crowded: bool) -> float:
    """The probability that tested claims of a fit bear."""
    from autotune.cost.constants import memory_constants
    from autotune.cost.spread.memory import surest

    return surest(crowded=crowded, claims=memory_constants().claims) + CLOSE


def _measured(row: Payload, _: Payload) -> Iterator[str]:
    measured = row["measured"]
    if (row["basis"] == "measured") != (measured is not None):
        yield f"basis {row['basis']}, measured {measured}"
    if measured is not None:
        if not same(measured["step_time_s"], row["step_time_s"]):
            yield f"a step takes {row['step_time_s']} s and was measured at {measured}"
        if not same(measured["peak_reserved_bytes"], row["reserved_bytes"]):
            yield "the allocator held other bytes than were measured"


def _offers(payload: Payload) -> Iterator[str]:
    """Nothing that is offered is infeasible; nothing infeasible is offered."""
    offered = [("best", payload["best"])] if payload["best"] else []
    offered += [(n, r) for n, r in rows_of(payload) if n.startswith(("alternatives", "pareto"))]
    for name, row in offered:
        if row["verdict"] != "fits" or row["disk_short_bytes"]:
            yield f"{name} is offered and {row['verdict']}, {row['disk_short_bytes']} B of disk"
    for i, row in enumerate(payload.get("beyond") or []):
        if row["verdict"] == "fits" and row["basis"] != "traced" and not row["disk_short_bytes"]:
            yield f"beyond[{i}] is said not to fit and its verdict is fits"


def _one_candidate_one_bill(payload: Payload) -> Iterator[str]:
    """A candidate has the same figures wherever it stands; today's may be another batch."""
    known: dict[str, tuple[str, Payload]] = {}
    for name, row in rows_of(payload):
        key = json.dumps([row["device"], row["device_count"], row["spot"], row["usd_per_hour"],
                          row["config"]], sort_keys=True)  # fmt: skip
        first, other = known.setdefault(key, (name, row))
        for figure in ("duration_s", "cost_usd", "step_time_s", "memory_bytes", "basis", "verdict"):
            if row[figure] != other[figure]:
                yield f"{name} and {first} are one candidate with two figures of {figure}"


def score_of(row: Payload, payload: Payload) -> float:
    """What was minimised: dollars, or seconds where asked for or where nothing costs anything.

    At the slow end of what nobody measured: a gain that is only expected decides nothing.
    """
    paid = any(r["usd_per_hour"] > 0 for _, r in rows_of(payload))
    by_cost = payload["search"]["objective"] == "cost" and paid
    return float(row["cost_usd" if by_cost else "duration_s"]["p50"]) * float(row["caution"])


def _nothing_better(payload: Payload) -> Iterator[str]:
    """No row that keeps the limits beats the pick by more than the tie."""
    best = payload["best"]
    if not best:
        return
    misses = bool(missed(best, payload))
    for name, row in rows_of(payload):
        if not name.startswith(("alternatives", "pareto", "machines")) or row["verdict"] != "fits":
            continue
        kept = not missed(row, payload, row["caution"])
        if misses and kept:
            yield f"the pick misses a limit that {name} keeps"
        better = score_of(row, payload) < score_of(best, payload) * (1 - TIE) - 1e-9
        if better and kept and not misses and row["basis"] == best["basis"]:
            yield (
                f"{name} is better than the pick: {score_of(row, payload)} against "
                f"{score_of(best, payload)}"
            )


def _tie(payload: Payload) -> Iterator[str]:
    """A tie names the rows that it is with, and only those that cannot be told apart."""
    best, ties = payload["best"], payload.get("ties", [])
    if bool(ties) != bool(payload["tie"]):
        yield f"tie {payload['tie']}, with {ties}"
    for place in ties:
        row = payload["alternatives"][place]
        apart = row["duration_s"]["p10"] > best["duration_s"]["p90"]
        if row["basis"] == "measured" and apart:
            yield f"a tie with alternatives[{place}], whose whole interval is worse"
    for own in payload.get("differences", []):
        close = own["low"] <= TIE and own["high"] >= -TIE
        if close != (own["place"] in ties):
            yield f"alternatives[{own['place']}] from {own['low']:.1%} to {own['high']:.1%}: {ties}"


def _front(payload: Payload) -> Iterator[str]:
    front = [
        (row["caution"] * row["duration_s"]["p50"], row["caution"] * row["cost_usd"]["p50"])
        for row in payload["pareto"]
    ]
    for (time_a, cost_a), (time_b, cost_b) in itertools.pairwise(front):
        if not (time_a < time_b and cost_a > cost_b):
            yield f"the front is no front: {time_a}, {cost_a} before {time_b}, {cost_b}"


def _counts(payload: Payload) -> Iterator[str]:
    rejected, search = payload["rejected"], payload["search"]
    if rejected["count"] != sum(rejected["by_reason"].values()):
        yield "reasons of rejection do not sum to their count"
    if search["priced"] > search["space_size"]:
        yield f"{search['priced']} of {search['space_size']} candidates were priced"
    runs = [run for run in payload.get("probed") or [] if not run["reused"]]
    searched = {json.dumps(r["config"], sort_keys=True) for r in runs if r["role"] == "search"}
    if search["probes"] != len(searched):
        yield f"{search['probes']} probes are told and {len(searched)} configurations are listed"
    if search.get("probe_runs", 0) != len(runs):
        yield f"{search.get('probe_runs')} runs of probes are told and {len(runs)} are listed"
    if not same(search["probe_seconds"], sum(run["wall_s"] for run in runs)):
        yield "seconds of the probes do not sum to what probing took"
    traced = sum(row["traced"] is not None for _, row in rows_of(payload))
    if (search["traced"] > 0) < (traced > 0):
        yield f"{search['traced']} candidates were traced and {traced} rows rest on a trace"


def _arithmetic(payload: Payload) -> Iterator[str]:
    job = payload["job"]
    an_epoch = math.ceil(job["rows"] / job["global_batch_size"])
    if job["steps"] and best_batch(payload) not in {None, job["global_batch_size"]}:
        yield f"the split makes {best_batch(payload)} rows a step, the job {job}"
    if job["steps"] > math.ceil(job["epochs"]) * an_epoch:
        yield f"{job['steps']} steps in {job['epochs']} epochs of {an_epoch}"


def best_batch(payload: Payload) -> int | None:
    """Rows of an optimizer step of the pick."""
    best = payload["best"]
    if not best:
        return None
    config = best["config"]
    split = config["micro_batch_size"] * config["gradient_accumulation_steps"]
    return int(split * best["device_count"])


def _waterfall(payload: Payload) -> Iterator[str]:
    today, best, steps = payload["today"], payload["best"], payload.get("waterfall")
    if not today or not best or steps is None:
        return
    for figure in ("duration_s", "cost_usd"):
        end = today[figure]["p50"] + sum(step[figure] for step in steps)
        if not math.isclose(end, best[figure]["p50"], rel_tol=1e-6, abs_tol=2e-3):
            yield f"from today's {figure} the changes lead to {end}, and the pick is {best[figure]}"


def _choices(payload: Payload) -> Iterator[str]:
    best = payload["best"]
    for each in payload.get("sensitivities") or []:
        for figure, saved in (("duration_s", "saved_s"), ("cost_usd", "saved_usd")):
            if each[figure] is None:  # it does not fit, or nobody can tell
                continue
            if best and not same(best[figure]["p50"] - each[figure], each[saved]):
                yield f"{each['key']} saves {each[saved]}, and the difference is another"
            if not each.get("fits", True):
                yield f"{each['key']} does not fit, and has a {figure}"


def _shortages(payload: Payload) -> Iterator[str]:
    """What is said to be short is, and what is said to make it fit does."""
    rejected = payload["rejected"]
    for each in rejected["relaxations"]:
        if each["required_bytes"] > each["available_bytes"]:
            yield f"{each['change']} is said to fit and needs more than there is"
    for each in rejected["nearest"]:
        over = each["required_bytes"] > each["available_bytes"]
        short = each.get("short_of", "memory")
        if (short in {"disk", "ram", "shm"} and not over) or (short == "limit" and over):
            yield f"{each['device']} is said to be short of {short}, by its figures it is not"


def _comparison(payload: Payload) -> Iterator[str]:
    """`compare`: the cheapest, the fastest and their order are those of the rows."""
    rows, cheapest, fastest = payload["rows"], payload["cheapest"], payload["fastest"]
    costs = [row["cost_usd"]["p50"] for row in rows]
    if costs != sorted(costs):
        yield "rows are not cheapest first"
    if cheapest and cheapest["cost_usd"]["p50"] > min(costs):
        yield "the cheapest is not"
    at_worst = [cost * row["caution"] for cost, row in zip(costs, rows, strict=True)]
    leads = payload["leads"]
    if (
        leads
        and not leads["misses"]
        and leads["cost_usd"]["p50"] * leads["caution"]
        > min(worst for worst, row in zip(at_worst, rows, strict=True) if not row["misses"])
    ):
        yield "what leads does not win at the slow end of what nobody measured"
    if fastest and fastest["duration_s"]["p50"] > min(r["duration_s"]["p50"] for r in rows):
        yield "the fastest is not"
    for i, row in enumerate(rows):
        if row["verdict"] != "fits":
            yield f"rows[{i}] is a machine to run on and {row['verdict']}"
        found = [
            *odds_follow(row, row["limits"], payload),
            *misses_follow(row, row["limits"], row["misses"], payload),
        ]
        yield from (f"rows[{i}]: {text}" for text in found)
    for miss in payload["infeasible"]:
        short = miss["required_bytes"], miss["available_bytes"]
        if None not in short and short[0] <= AT_RISK * short[1] and miss["reason"] == "memory":
            yield f"{miss['device']} is short of memory with {short[0]} of {short[1]} bytes"


_WHOLE = (
    _offers, _one_candidate_one_bill, _nothing_better, _tie, _front, _counts, _arithmetic,
    _waterfall, _choices, _shortages,
)  # fmt: skip


def main() -> int:
    """Check an answer and the reports made of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.consistency", description=__doc__)
    parser.add_argument("answer", type=Path)
    parser.add_argument("reports", type=Path, nargs="*")
    arguments = parser.parse_args()
    payload = json.loads(arguments.answer.read_text(encoding="utf-8"))
    found = contradictions(payload)
    for path in arguments.reports:
        found += [f"{path.name}: {t}" for t in said(payload, path.read_text(encoding="utf-8"))]
    print("\n".join(found) or "no contradiction")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
