"""Twenty jobs, what `tune` answers to each, and what others published of such runs beside it.

The jobs and the published figures stand in `twenty_jobs.yaml`, with source and date. A published
configuration is priced exactly by `estimate`; nothing of it is used to fit anything.

    python -m bench.twenty_jobs           write docs/twenty_jobs.md
    python -m bench.twenty_jobs --check   exit 1 if the page is stale
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.units import format_seconds, format_usd
from autotune.report.payload import row_payload
from autotune.report.phrases import price_marks, probability
from autotune.report.screens.screen import settings_phrase

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated, Spread

ROOT = Path(__file__).resolve().parent.parent
JOBS, PAGE = Path(__file__).with_suffix(".yaml"), ROOT / "docs" / "twenty_jobs.md"
GIB = 2.0**30
PACKAGES = {"flash_attn": "2.8.3"}  # that the default profile does not assume
FAR = 1.25  # predicted over published, each way: beyond it a row is printed bold
INTRODUCTION = """\
# Twenty jobs

What `autotune tune` answers to twenty jobs, from 0.5 to 72 billion parameters, on the machine that
each names; and below, where somebody published such a run, that configuration priced exactly by
`autotune estimate` beside the published figure. Nothing on this page was used to fit anything,
unless its line says so. Predictions are by formula, with the catalogue's prices. Written by
`python -m bench.twenty_jobs`; the jobs and the published figures are in `bench/twenty_jobs.yaml`.
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """One of the jobs. published: what somebody measured; priced: that configuration's bill."""

    what: str
    job: Job
    answer: Recommendation
    published: dict[str, Any] | None
    priced: Estimated | None


def entries() -> list[dict[str, Any]]:
    """The jobs as the file has them."""
    found: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(JOBS.read_text("utf-8"))
    return found


def answered(entry: dict[str, Any], folder: Path) -> Answered:
    """A job tuned on its machine, and its published configuration priced."""
    values = {**entry["job"], "name": entry["what"]}
    tokens = values.pop("row_tokens", None)
    if tokens:
        lengths = {"p50": tokens, "p95": tokens, "max": tokens}
        values["data"] = {**values["data"], "lengths": lengths}
    job = _loaded(values, folder)
    answer = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    published = entry.get("published")
    if published is None:
        return Answered(entry["what"], job, answer, None, None)
    software = {**values.get("software", {}), **PACKAGES}
    same = _loaded({**values, "lock": published["config"], "software": software}, folder)
    priced = estimate(same, fidelity="formula").row
    return Answered(entry["what"], job, answer, published, priced)


def _loaded(values: dict[str, Any], folder: Path) -> Job:
    path = folder / "job.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return load_job(path)


def page() -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: os.environ.get(name) for name in ("AUTOTUNE_HOME", "AUTOTUNE_OFFLINE")}
        os.environ |= {"AUTOTUNE_HOME": str(Path(folder) / "home"), "AUTOTUNE_OFFLINE": "1"}
        try:
            found = [answered(entry, Path(folder)) for entry in entries()]
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    return "\n".join((INTRODUCTION, "## What it answers", "", *_answers(found), "",
                      "## Beside what others published", "", *_published(found), ""))  # fmt: skip


def _answers(found: list[Answered]) -> list[str]:
    head = ("", "job", "machine", "what to run", "a step", "tokens/s", "memory", "takes", "costs")
    lines = [_line(head), _line(("---:", "---", "---", "---", *["---:"] * 5))]
    for number, each in enumerate(found, 1):
        lines.append(_line((str(number), each.what, *_answer(each))))
    return lines


def _answer(each: Answered) -> tuple[str, ...]:
    best = each.answer.best
    offer = each.job.offers[0]
    if best is None:
        return (offer.label, "nothing fits", *[""] * 5)
    row = row_payload(best)
    # not how old the price is: that changes with the day of the reader
    marks = [mark for mark in price_marks(row).split(", ") if mark not in {"", "old"}]
    machine = f"{offer.label}, {', '.join((f'{format_usd(offer.usd_per_hour)}/h', *marks))}"
    takes = _spread(best.duration_s, format_seconds)
    settings = settings_phrase(row["config"], offer.count).replace(
        " (per_device_train_batch_size)", ""
    )
    return (
        machine,
        settings,
        format_seconds(best.step_time_s),
        f"{best.tokens_per_s:,.0f}",
        f"{best.memory_bytes.total / GIB:.1f} GiB",
        takes,
        _spread(best.cost_usd, format_usd),
    )


def _spread(of: Spread, show: Callable[[float], str]) -> str:
    return f"{show(of.p50)} ({show(of.p10)} to {show(of.p90)})"


def _published(found: list[Answered]) -> list[str]:
    head = ("", "run by", "published", "predicted", "ratio", "memory", "predicted", "ratio",
            "unlike this")  # fmt: skip
    lines = [_line(head), _line(("---:", "---", *["---:"] * 6, "---"))]
    ratios, held = [], 0
    for number, each in enumerate(found, 1):
        if each.published is None or each.priced is None:
            continue
        said, priced = each.published, each.priced
        time_s, predicted = _times(said, priced)
        ratios.append(predicted / time_s)
        spread = priced.duration_s
        held += spread.p10 <= spread.p50 * time_s / predicted <= spread.p90
        memory, total = said.get("memory_gib"), _memory(said.get("kind"), priced) / GIB
        lines.append(
            _line(
                (
                    str(number),
                    f"{said['by']}, {said['date']}",
                    format_seconds(time_s),
                    format_seconds(predicted),
                    _ratio(predicted / time_s),
                    f"{memory:.1f} GiB" if memory else "",
                    f"{total:.1f} GiB" if memory else "",
                    _ratio(total / memory) if memory else "",
                    "; ".join(part for part in (_doubt(priced), said.get("unlike", "")) if part),
                )
            )
        )
    within = sum(1 / FAR <= ratio <= FAR for ratio in ratios)
    note = (
        "Times are of a step, or of the whole run where that is what was published. "
        f"{within} of {len(ratios)} predicted times lie within 25 % of the published ones, the "
        f"others are bold; {held} of the published times lie within the predicted 80 % range."
    )
    return [*lines, "", note]


def _times(said: dict[str, Any], priced: Estimated) -> tuple[float, float]:
    """[s] published and predicted, of the same thing: a step, or all the steps of a run."""
    if "run_s" in said:
        return float(said["run_s"]), priced.steps * priced.step_time_s
    return float(said["step_s"]), priced.step_time_s


def _memory(kind: str | None, priced: Estimated) -> float:
    """[bytes] of one card, as the published reading counts them."""
    parts = priced.memory_bytes
    if kind == "allocated":
        return parts.total - parts.context - parts.fragmentation
    if kind == "reserved":
        return priced.reserved_bytes
    return parts.total


def _doubt(priced: Estimated) -> str:
    """What the prediction says against a run that did run."""
    chance = probability(row_payload(priced))
    return "" if priced.verdict == "fits" else f"predicted to fit with probability {chance}"


def _ratio(ratio: float) -> str:
    shown = f"{ratio:.2f}"
    return shown if 1 / FAR <= ratio <= FAR else f"**{shown}**"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" in arguments:
        fresh = PAGE.exists() and PAGE.read_text("utf-8") == text
        print("fresh" if fresh else f"{PAGE.name} is stale: python -m bench.twenty_jobs")
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
