"""What to type next: the training itself, and what follows it."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from autotune.report.blocks import Commands, Paragraph, Section

if TYPE_CHECKING:
    from autotune.report.schema import RecommendationPayload

RUN_TITLE = "How to run it"
SCRIPT = "run.sh"


def run_section(payload: RecommendationPayload) -> Section:
    """The files that were written, and the commands; nothing where nothing was picked or kept."""
    run_dir, files = payload["run_dir"], payload.get("files", [])
    if not run_dir or not payload["best"]:
        return Section(RUN_TITLE, ())
    folder = quote(run_dir)
    commands = [(line, "train with the pick") for line in run_commands(payload)]
    commands.append(
        (f"autotune verify {folder}", "hold the run against this answer, half-way or finished")
    )
    others = payload.get("other_formats", [])
    if others:
        named = f"for another trainer: {', '.join(others)}"
        commands.append((f"autotune export {folder} --to {others[0]}", named))
    commands += [
        (f"autotune report {folder} --format md", "this report again, in another format"),
    ]
    held = f"{', '.join(files)} and every trial" if files else "every trial"
    what = f"{run_dir} holds {held}."
    return Section(RUN_TITLE, (Paragraph(what), Commands(tuple(commands))))


def run_commands(payload: RecommendationPayload) -> list[str]:
    """What starts the training of the pick: a line for each script that was written."""
    folder = payload["run_dir"] or ""
    scripts = [name for name in payload.get("files", []) if name.rpartition("/")[2] == SCRIPT]
    return [f"bash {quote(f'{folder}/{name}')}" for name in scripts]
