"""What to type next: the training itself, what follows it, and what sharpens the answer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shlex import join, quote, split
from typing import TYPE_CHECKING

from autotune.domain.answer.recommendation import NextStep
from autotune.domain.objective import PAIRED
from autotune.domain.paths import near
from autotune.domain.units import format_seconds, format_usd
from autotune.orchestrators.registry import ORCHESTRATORS
from autotune.report.layout.blocks import Commands, Paragraph, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.recommendation import Asked, Relaxation
    from autotune.report.schema import RecommendationPayload

RUN_TITLE = "How to run it"
SCRIPT, TRAINS = "run.sh", "train.py"  # TRAINS beside it: a script that MAX_STEPS can stop
SMOKE_STEPS, FEWEST_SMOKE_STEPS = 60, 10  # of a short job, half its steps
ROWS_FILE = "rows.jsonl"
OWN = "own/"  # the user's own file, in a run folder


def run_section(payload: RecommendationPayload) -> Section:
    """The files that were written, and the commands; nothing where nothing was picked or kept."""
    run_dir, files = payload.run_dir, payload.files
    if not run_dir or not payload.best:
        return Section(RUN_TITLE, ())
    held = f"{', '.join(files)} and every trial" if files else "every trial"
    others = payload.other_formats or ()
    what = f"{run_dir} holds {held}."
    what += f" It can be exported for: {', '.join(others)}." if others else ""
    commands = tuple((each.command, each.what) for each in next_steps(payload))
    lines = tuple((line, "") for line in in_own_script(payload))
    own = Paragraph("In a training script of your own, these lines record it for `verify`:")
    return Section(RUN_TITLE, (Paragraph(what), Commands(commands), own, Commands(lines)))


def as_typed_here(payload: RecommendationPayload) -> RecommendationPayload:
    """The answer for a reader in this folder: the run folder as short as it can be typed here."""
    run_dir = payload.run_dir
    if not run_dir:
        return payload
    writes_to = None if payload.writes_to is None else near(payload.writes_to)
    short = replace(payload, run_dir=near(run_dir), writes_to=writes_to)
    return replace(short, next=next_steps(short))


def in_own_script(payload: RecommendationPayload) -> list[str]:
    """Python, between making a Trainer and its `train()`: it records the run beside the answer."""
    if not payload.run_dir or not payload.best or not _has_steps(payload):
        return []
    folder = json.dumps(str(Path(payload.run_dir).absolute()), ensure_ascii=False)
    return [
        "from autotune import TrainerCallback",
        f"trainer.add_callback(TrainerCallback({folder}))",
    ]


def next_steps(payload: RecommendationPayload) -> tuple[NextStep, ...]:
    """Commands for a shell, in the order in which they are of use; the run folder as it stands."""
    found = [*to_train(payload), *to_verify(payload), *to_probe(payload)]
    run_dir = payload.run_dir
    if run_dir:
        folder = quote(run_dir)
        found.append(
            NextStep(f"autotune recompute {folder} --gpu all", "the same on other machines")
        )
        found += [
            NextStep(f"autotune export {folder} --to {name}", f"what to run, for {name}")
            for name in payload.other_formats or ()
        ]
        found += [
            NextStep(
                f"autotune report {folder} --verbose", "this answer with everything behind it"
            ),
            NextStep(f"autotune report {folder} --format html > report.html", "the same as a page"),
        ]
    return tuple(found)


def to_train(payload: RecommendationPayload) -> list[NextStep]:
    """The smoke run and the run, with what the scripts must be told first."""
    found: list[NextStep] = []
    names = _scripts(payload) if payload.best else []
    ours = [name for name in names if _beside(name, TRAINS) in payload.files]
    if ours and payload.job.dataset is None:
        found.append(NextStep(f"export DATA={ROWS_FILE}", "your rows, one JSON object a line"))
    if ours and payload.best and payload.best.nodes > 1:
        what = "on each machine: the address of the first, and its own rank"
        found.append(NextStep("export MASTER_ADDR=FIRST NODE_RANK=0", what))
    for name in names:
        script = quote(_below(payload, name))
        steps = int(payload.job.steps)
        smoke = min(SMOKE_STEPS, (payload.best.steps_of(steps) if payload.best else steps) // 2)
        if name in ours and smoke >= FEWEST_SMOKE_STEPS:
            what = f"a short test of {smoke} steps: does it start, and does it fit?"
            found.append(NextStep(f"MAX_STEPS={smoke} bash {script}", what))
        found.append(NextStep(f"bash {script}", "the full run"))
    if payload.run_dir and payload.best:
        found += _elsewhere(payload)
    return found


def _elsewhere(payload: RecommendationPayload) -> list[NextStep]:
    """What starts the pick on somebody's machines, where it was exported for them."""
    found = []
    for name in payload.files:
        folder, _, file = name.rpartition("/")
        for each in ORCHESTRATORS.values():
            if each.file == file:
                place = quote(_below(payload, folder).rstrip("/"))
                words = each.started_by(str(Path(payload.run_dir or "") / folder))
                what = f"the full run through {each.title}, as {file} describes it"
                found.append(NextStep(f"(cd {place} && {words})", what))
    return found


def to_verify(payload: RecommendationPayload) -> list[NextStep]:
    """Holding the run against the answer, by the log that it writes."""
    scripts = _scripts(payload)
    if not payload.run_dir or not payload.best or not scripts:
        return []
    words = ["autotune", "verify", payload.run_dir]
    folder, writes_to = scripts[0].rpartition("/")[0], payload.writes_to
    if _is_own(payload):
        if writes_to is None:
            return []
        words.append(writes_to)
    elif folder:
        words.append(str(Path(payload.run_dir) / folder))
    what = "compare the run with this answer, finished or half-way; later answers learn from it"
    return [NextStep(join(words), what)]


def _is_own(payload: RecommendationPayload) -> bool:
    """Whether the first script starts the user's own file, which says itself where it writes."""
    return any(name.startswith(OWN) for name in payload.files)


def to_probe(payload: RecommendationPayload) -> list[NextStep]:
    """The same question, answered by short measured runs where the pick's device is at hand.

    Of probes that other programs disturbed the same once more, as a new run: none is reused.
    """
    best, asked = payload.best, payload.asked
    if not best or not asked or not _has_steps(payload):
        return []
    if payload.search.score == "probe":
        noise, what = payload.search.noise, "measures again; type it when nothing else runs"
        command = again(asked, "tune", _probing_too(asked, payload.search.probe_budget_s))
        return [NextStep(command, what)] if noise and noise.cannot_tell else []
    if payload.job.objective in PAIRED:
        return []  # probes run supervised steps
    if best.nodes > 1:
        return []  # a search probes one machine
    command = again(asked, "tune", "--score probe")
    where = "here" if best.device == "cpu" else f"on a machine with {best.device}"
    return [NextStep(command, f"{where}: measures a few steps of the best configurations")]


def _probing_too(asked: Asked, budget_s: float | None) -> str:
    """What a resumed run's folder said of its probes, and a new run must be told."""
    if "--score" in asked.words:
        return ""
    return "--score probe" + (f" --probe-budget {budget_s:g}s" if budget_s else "")


def one_step(asked: Asked, command: str, options: str, what: str) -> tuple[NextStep, ...]:
    """What was asked, put to another command or with options added."""
    words = (*asked.words[:1], command, *asked.words[2:])
    return (NextStep(again(replace(asked, words=words), command, options), what),)


def to_search(asked: Asked, needs: Sequence[Relaxation] | None) -> tuple[NextStep, ...]:
    """The same job put to `tune`. needs: changes without which it would find nothing, if any.

    Of those the first that keeps the result, and the first that is the user's to decide.
    """
    if needs is None:
        return one_step(asked, "tune", "", "the best settings and machine, what to run")
    first = {each.quality: each for each in reversed(needs) if each.apply}
    return tuple(
        step
        for quality, each in sorted(first.items())
        for step in one_step(
            asked, "tune", each.apply,
            f"{each.change}: {format_seconds(each.duration_s)}, {format_usd(each.cost_usd)}"
            + (" (changes the result)" if quality else ""),
        )
    )  # fmt: skip


def after_verifying(run_dir: str | None, asked: Asked | None, *, taught: bool) -> list[NextStep]:
    """What a verified run is good for: the answer asked anew, and what the rest should run."""
    found = []
    if asked is not None and taught:
        found.append(
            NextStep(again(asked, "tune", ""), "ask again, now with what this run measured")
        )
    if run_dir is not None:
        what = "is another machine or setting better for the rest?"
        found.append(NextStep(f"autotune recompute {quote(near(run_dir))}", what))
    return found


def again(asked: Asked | None, command: str, options: str) -> str:
    """The same question with options added; what they state anew is taken out of it."""
    if asked is None:
        return f"autotune {command} JOB {options}"
    added = split(options)
    stated = {_key(flag, value) for flag, value in pairwise(added) if flag.startswith("--")}
    words: list[str] = []
    left = iter(zip(asked.words, [*asked.words[1:], ""], strict=True))
    for word, following in left:
        if word.startswith("--") and _key(word, following) in stated:
            next(left, None)
        else:
            words.append(word)
    return _from_its_folder(asked, join([*words, *added]))


def _key(flag: str, value: str) -> tuple[str, str]:
    """What an option states: of `--set KEY=VALUE` its key, of `--allow KNOB` the knob."""
    return flag, value.partition("=")[0] if flag in {"--set", "--allow"} else ""


def _from_its_folder(asked: Asked, command: str) -> str:
    if Path(asked.folder) == Path.cwd():
        return command
    return f"(cd {quote(asked.folder)} && {command})"


def _has_steps(payload: RecommendationPayload) -> bool:
    return payload.job.steps > 0


def _scripts(payload: RecommendationPayload) -> list[str]:
    """What starts the pick; the user's own file may have the same name."""
    found = [name for name in payload.files if name.rpartition("/")[2] == SCRIPT]
    return [name for name in found if not name.startswith(OWN)]


def _beside(name: str, other: str) -> str:
    return f"{name.rpartition('/')[0]}/{other}".lstrip("/")


def _below(payload: RecommendationPayload, name: str) -> str:
    return f"{payload.run_dir or ''}/{name}"
