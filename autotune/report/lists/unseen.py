"""What `validate` says of sources, devices and groups that no fit has seen, and of users' logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_count
from autotune.evidence.validation.verdicts import share_interval
from autotune.report.layout.blocks import Block, Paragraph, Section, Table, bullets, section, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def percent(value: float | None) -> str:
    """A share in percent; nothing where there is none."""
    return "" if value is None else f"{100 * value:.1f}%"


def equally(share: float | None) -> str:
    """The same share with groups weighted equally, as a clause."""
    return "" if share is None else f", {percent(share)} with groups weighted equally"


_UNITS = {
    "source": "whole sources", "program": "whole training programs", "device": "whole devices",
    "group": "source, model, device",
}  # fmt: skip
_LINES = {"source": "sources", "program": "programs", "device": "devices", "group": "groups"}
_UNSEEN = (
    ("time", "step time"), ("memory", "peak memory"), ("memory_allocated", "allocated"),
    ("memory_reserved", "reserved"), ("memory_driver", "driver"),
)  # fmt: skip


def headline(
    payload: Mapping[str, Any], plain: Callable[[Mapping[str, Any]], Table]
) -> tuple[Block, ...]:
    """What was left out, each with its errors; of a user's file, the plain table of errors."""
    left_out = payload["left_out"]
    if not left_out:
        return (plain(payload),)
    rows: list[tuple[str, ...]] = []
    for unit, own in left_out.items():
        rows += [
            (_LINES[unit] if i == 0 else "", title, *_unseen_cells(own[key]))
            for i, (key, title) in enumerate(_UNSEEN)
        ]
    titles = (
        "left out", "figure", ">rows", ">groups", ">median", ">90 % below", ">bias",
        ">in interval",
    )  # fmt: skip
    text = (
        "Left out: nothing of the source, the training program, the device or the group (source, "
        "model and device) went into the fit that predicts it, nor into the size of its interval. "
        "The programs: transformers' Trainer with all that drives it, and each trainer with a loop "
        "of its own. The first lines are "
        "what a run that nobody has fitted can expect; the last know other runs of the same "
        "source. Peak memory: as the row reports it; below, by what was read."
    )
    return (table(rows, *titles), Paragraph(text, "quiet"))


def _unseen_cells(errors: Mapping[str, Any]) -> tuple[str, ...]:
    bias = errors["bias"]
    return (
        format_count(errors["n"]),
        format_count(errors["groups"]),
        percent(errors["median_ape"]),
        percent(errors["p90_ape"]),
        "" if bias is None else f"{100 * bias:+.1f}%",
        percent(errors["coverage"]),
    )


def judged_section(payload: Mapping[str, Any]) -> Section:
    """Users' own logs, who is known, verdicts, bounds, and figures for orientation."""
    lines = [
        *_unseen_lines(payload["left_out"]),
        *(
            f"{format_count(own['n'])} readings of {name} that lengths only bound: "
            f"{percent(own['kept'] / own['n'])} within the bound"
            for name, own in payload["bounds"].items()
            if own["n"]
        ),
        *(
            f"{name}, figures for orientation (grade C, or a setting that is the trainer's default "
            f"and not stated): {_in_words(own)}"
            for name, own in payload["orientation"].items()
            if own["n"]
        ),
        *(
            f"several machines, in no fit, {name}: {_in_words(own)}"
            for name, own in payload["machines"].items()
            if own["n"]
        ),
        *(
            f"an embedding and a head that train whole, in no fit, {name}: {_in_words(own)}"
            for name, own in payload["saved"].items()
            if own["n"]
        ),
    ]
    return section("Who is judged how", bullets(lines))


def _unseen_lines(left_out: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    source = left_out.get("source")
    if source:
        lines += [
            f"logged by users themselves, grade A, {figure}: {_in_words(own)}"
            for figure, own in source["logged"].items()
            if own["n"]
        ]
        lines += [
            f"{figure}, inside the 80 % interval of new sources: {_acquainted(kinds)}"
            for figure, kinds in source["acquainted"].items()
            if kinds
        ]
    for unit, own in left_out.items():
        oom = own["oom"]
        lines.append(
            f"{_UNITS[unit]} left out: {oom['false_fits']} of {oom['oom_rows']} runs out of memory "
            f"said to fit{equally(oom['false_fit_share'])}; {oom['false_ooms']} of "
            f"{oom['fit_rows']} that fitted said to run out{equally(oom['false_oom_share'])}"
        )
    return lines


def _acquainted(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        f"{_KINDS[kind]} {percent(own['share'])} ({format_count(own['sources'])} "
        f"{'source' if own['sources'] == 1 else 'sources'}; weighing them equally "
        f"{percent(own['share_of_sources'])})"
        for kind, own in kinds.items()
    ]
    return "; ".join([*lines, _of_all(list(kinds.values()))])


def _of_all(kinds: Sequence[Mapping[str, Any]]) -> str:
    """What so few sources leave open: runs of one move together, so that each is a draw."""
    judged = [own for own in kinds if own["share_of_sources"] is not None]
    sources = sum(own["sources"] for own in judged)
    share = sum(own["sources"] * own["share_of_sources"] for own in judged) / max(sources, 1)
    low, high = share_interval(share * sources, max(sources, 1))
    return (
        f"of all {percent(share)} with sources weighing the same, which {format_count(sources)} of "
        f"them may show where the true share is {percent(low)} to {percent(high)}"
    )


_KINDS = {
    "known": "of a program and on a device that others have too", "new program": "of a new program",
    "new device": "on a new device", "both new": "both new",
}  # fmt: skip


def _in_words(own: Mapping[str, Any]) -> str:
    return (
        f"{format_count(own['n'])} rows of {format_count(own['groups'])} groups, median error "
        f"{percent(own['median_ape'])}, 90 % below {percent(own['p90_ape'])}, "
        f"{percent(own['coverage'])} inside the interval"
    )
