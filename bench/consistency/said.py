"""Whether what a report says in words and figures is what its answer holds.

A report is the text, Markdown or page of an answer. Sentences are found by their wording: one that
a report does not use is not missed, one that it uses must be true.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

from autotune.domain.outcome import Spread
from autotune.domain.units import format_count, format_seconds, format_usd
from autotune.report.phrases import BOUND, chance, seconds_span, usd_span
from bench.consistency.lengths import lengths_told
from bench.consistency.limits import odds_told

if TYPE_CHECKING:
    from collections.abc import Iterator

Payload = dict[str, Any]
TIME = r"-?[\d.,]+ (?:ms|s|min|h|d)"
HAIR = 1e-9
HIDDEN = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)


def said(payload: Payload, report: str) -> list[str]:
    """Sentences and figures of a report that its answer denies."""
    text = plain(report)
    row = payload.get("row") or payload.get("best")
    if row is None:
        return list(_without_pick(text))
    checks = (_headline, _fit, _sure, _bound, _steps, _share)
    found = [problem for check in checks for problem in check(payload, row, text)]
    found += [*odds_told(payload, text), *lengths_told(payload, row, text)]
    if "best" in payload:
        whole = (_budget, _priced, _today, _tie, _percent, _changes, _missed)
        found += [problem for check in whole for problem in check(payload, row, text)]
    return found


def plain(report: str) -> str:
    """A report as one line of words, whatever it was written in."""
    if "<html" in report[:200] or "autotune fragment" in report[:200]:
        report = html.unescape(re.sub(r"<[^>]+>", " ", HIDDEN.sub(" ", report)))
    report = re.sub(r"\\([^\w\s])", r"\1", report).replace("**", "").replace("|", " ")
    return " ".join(report.split())


def _headline(_: Payload, row: Payload, text: str) -> Iterator[str]:
    spans = [seconds_span(Spread(**row["duration_s"]))]
    spans += [usd_span(Spread(**row["cost_usd"]))] if row["usd_per_hour"] else []
    for span in spans:
        middle = span.partition(" (")[0]
        if middle not in text:
            yield f"{middle} is the answer, and it does not stand there"


def _fit(_: Payload, row: Payload, text: str) -> Iterator[str]:
    """No sentence says that a row fits which is at risk, or whose cache would fill the memory."""
    for word, told in re.findall(r"\b([Ff]its|should run[^(]*) \(probability ([^)]+)\)", text):
        if told != chance(row["fits_probability"]):
            yield f"the probability is {row['fits_probability']}, and {told} is told"
        if word.lower() == "fits" and (row["verdict"] != "fits" or row["crowded"]):
            yield f"it is said to fit: verdict {row['verdict']}, crowded {row['crowded']}"
    plainly = re.search(r"(?:^|[.:] )[Ff]its\b[^.]*", text)
    if plainly and (row["verdict"] != "fits" or row["crowded"]):
        yield f"{plainly[0]!r}: verdict {row['verdict']}, crowded {row['crowded']}"


def _sure(payload: Payload, _: Payload, text: str) -> Iterator[str]:
    """Near certainty is told only where some row has it."""
    rows = [payload.get("row"), payload.get("best"), payload.get("today")]
    for name in ("alternatives", "pareto", "machines", "beyond"):
        rows += payload.get(name) or []
    most = max(row["fits_probability"] for row in rows if row)
    for words in ("over 0.99", "> .99", "> 0.99"):
        if words in text and most <= 0.99:  # noqa: PLR2004 - what the words say
            yield f"{words!r} is told, and the highest probability is {most}"


def _bound(_: Payload, row: Payload, text: str) -> Iterator[str]:
    heads = {cause: re.split(r"[:.(]", words)[0].strip() for cause, words in BOUND.items()}
    for told in re.findall(r"[Bb]ound by ([a-z][a-z -]*)", text):
        causes = {
            cause for cause, head in heads.items() if told.startswith(head.partition(" (")[0])
        }
        if causes and row["bound_by"] not in causes:
            yield f"it is bound by {row['bound_by']}, and {told.strip()!r} is told"


def _steps(_: Payload, row: Payload, text: str) -> Iterator[str]:
    """What all steps are said to take is what the bill gives them, waiting for data included."""
    for told in re.findall(rf"all steps take ({TIME})", text):
        parts = row["time_s"]
        busy, waited = parts["train"], parts["train"] + parts["data_wait"]
        if told not in {format_seconds(s) for s in _between(busy, waited)}:
            yield f"all steps are said to take {told}, the bill has {format_seconds(waited)}"


def _between(low: float, high: float) -> list[float]:
    """Waiting before the first batch is no step, and the bill counts it as waiting.

    A hair wider than both ends: the last digit of a sum may round the other way.
    """
    low, high = low * (1.0 - HAIR), high * (1.0 + HAIR)
    return [low + (high - low) * i / 1000.0 for i in range(1001)]


def _share(_: Payload, row: Payload, text: str) -> Iterator[str]:
    total = row["duration_s"]["p50"]
    for told in re.findall(r"training steps are (\d+) % of the time", text):
        true = 100 * row["time_s"]["train"] / total if total else 0.0
        if abs(float(told) - true) > 1:
            yield f"training steps are said to be {told} % and are {true:.1f} %"


def _budget(payload: Payload, _: Payload, text: str) -> Iterator[str]:
    asked = payload["search"].get("probe_budget_s")
    for told in re.findall(rf"probe budget of ({TIME})", text):
        if asked is None or told != format_seconds(asked):
            yield f"a probe budget of {told} is told, and {asked} s were asked for"


def _priced(payload: Payload, _: Payload, text: str) -> Iterator[str]:
    search = payload["search"]
    true = (format_count(search["priced"]), format_count(search["space_size"]))
    for told in re.findall(r"Priced ([\d,]+) of ([\d,]+) candidates", text):
        if told != true:
            yield f"{told} candidates are told, {true} were priced"


def _today(payload: Payload, row: Payload, text: str) -> Iterator[str]:
    today = payload["today"]
    if today is None:
        return
    saved = today["duration_s"]["p50"] - row["duration_s"]["p50"]
    words = (format_seconds(abs(saved)), "sooner" if saved >= 0 else "later")
    for told in re.findall(rf"({TIME}) (sooner|later) and", text):
        if told != words:
            yield f"{' '.join(told)} than today is told, and it is {' '.join(words)}"
    usd = today["cost_usd"]["p50"] - row["cost_usd"]["p50"]
    money = (format_usd(abs(usd)), "cheaper" if usd >= 0 else "dearer")
    for found in re.findall(r"(?:sooner|later) and (\$[\d.,]+\d) (cheaper|dearer)", text):
        if found != money:
            yield f"{' '.join(found)} than today is told, and it is {' '.join(money)}"


def _tie(payload: Payload, _: Payload, text: str) -> Iterator[str]:
    if ("Too close to call" in text) and not payload["tie"]:
        yield "a tie is told, and there is none"


def _percent(payload: Payload, row: Payload, text: str) -> Iterator[str]:
    """How much worse than the pick a row is, where its cost and that stand side by side."""
    figure = "cost_usd" if payload["search"]["objective"] == "cost" else "duration_s"
    least = row[figure]["p50"]
    true: dict[str, set[int]] = {}
    for other in payload["alternatives"]:
        usd, own = other["cost_usd"]["p50"], other[figure]["p50"]
        if least:
            true.setdefault(format_usd(usd), set()).add(round(100 * (own - least) / least))
    for usd, percent in re.findall(r"(\$[\d,.]+\d) ([+-]\d+)%", text):
        if usd in true and int(percent) not in true[usd]:
            yield f"{usd} is said to be {percent} %, and it is {sorted(true[usd])} %"


def _changes(payload: Payload, row: Payload, text: str) -> Iterator[str]:
    """Changes against today with their share, and today's figures beside the pick's."""
    today = payload["today"]
    if today is None:
        return
    pairs = [(today[name]["p50"], row[name]["p50"]) for name in ("duration_s", "cost_usd")]
    pairs.append((today["step_time_s"], row["step_time_s"]))
    pairs.append((today["memory_bytes"]["total"], row["memory_bytes"]["total"]))
    true = {round(100 * (after - before) / before) for before, after in pairs if before}
    told = re.findall(rf"[+-](?:{TIME}|\$[\d,.]+\d|[\d.]+ [KMGT]?i?B) \(([+-]\d+)%\)", text)
    told += re.findall(r"today [^()%]{2,20} \(([+-]\d+)%\)", text)
    for percent in told:
        if int(percent) not in true:
            yield f"a change of {percent} % against today is told, the changes are {sorted(true)}"


def _missed(payload: Payload, _: Payload, text: str) -> Iterator[str]:
    values = {each["limit"]: each["value"] for each in payload["limits"] or ()}
    late = {miss["limit"] for miss in payload["misses"]}
    shown = {
        f"{name.replace('_', ' ')} of "
        f"{format_usd(values[name]) if name == 'budget' else format_seconds(values[name])} missed"
        for name in late
    }
    value = r"(?:\$[\d,.]+\d|[\d.]+ \w+)"
    told = re.findall(rf"(?:deadline|budget|max session) of {value} missed", text, re.IGNORECASE)
    for found in told:
        if found.lower() not in shown:
            yield f"{found!r} is told, and what is missed is {sorted(shown)}"
    for words in shown:
        if words not in text.lower():
            yield f"{words!r} is not told"


def _without_pick(text: str) -> Iterator[str]:
    if re.search(r"(?:^|[.:] )Fits\b", text):
        yield "nothing fits, and a fit is told"
