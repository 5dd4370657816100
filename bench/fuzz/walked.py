"""Command lines that nothing is wrong with, one after the other on the same run.

A job is answered and kept, then reported, exported, verified, compared and asked again. What one
command says, another says too; what only reads changes nothing; and a second time is as the first.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.fuzz.drawn import drawn_job
from bench.fuzz.reading import Reader, Said, environment, reader, said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

RUN, JOB, LOG, CAMPAIGN, OTHER = "runs/run", "job.json", "log.csv", "campaign.json", "runs/again"
FOLLOWING = 3  # commands after the first, each typed up to three times
ANSWERS = (0, 3, 4, 6)  # of `autotune help exit-codes`: what ends a command that was understood
REFUSED = 2
LINES = (
    "--model gpt2 --rows 2k --max-length 256 --gpu rtx-4090",
    "--model Qwen2.5-7B --method qlora --data tatsu-lab/alpaca --gpu l4,2xl4",
    "--model Qwen2.5-0.5B --method full --rows 500 --global-batch 8 --gpu t4@0.30USD/h",
    "--model meta-llama/Llama-3.1-8B --rows 20k --epochs 2 --gpu 8xh100,a100-40gb",
)
ASKED: tuple[tuple[str, ...], ...] = (
    ("--deadline", "90m"), ("--budget", "3USD"), ("--minimize", "time"), ("--spot",),
    ("--max-price", "5USD/h"), ("--allow", "packing"), ("--allow", "optimizer"),
    ("--set", "micro_batch_size=2"), ("--set", "train.epochs=2"), ("--set", "data.max_length=512"),
    ("--objective", "dpo"), ("--epochs", "3"), ("--gpu", "h100,2xl40s"), ("--price", "2USD/gpu-h"),
)  # fmt: skip
TARGETS = (
    "hf", "trl", "axolotl", "llamafactory", "litgpt", "unsloth", "sky", "slurm", "dstack", "k8s",
)  # fmt: skip
FORMATS = ("text", "json", "md", "csv")
FORMULA = ("--fidelity", "formula")
_TOOK = re.compile(r"\bin [\d.,]+ m?s\b")  # how long the answer took to find


def _asked(rng: Random, *also: tuple[str, ...]) -> list[str]:
    chosen = rng.sample((*ASKED, *also), rng.choice((0, 0, 1, 2)))
    return [word for words in chosen for word in words]


def _format(rng: Random, *also: str) -> list[str]:
    form = rng.choice((*FORMATS, *also))
    return ["--format", form] + ["--verbose"] * (form == "text" and rng.random() < 0.5)


def _commands(rng: Random, question: list[str]) -> list[list[str]]:
    """What somebody types once there is an answer, most of it about the run."""
    machine = ["--gpu", rng.choice(("h100", "l4", "2xa100", "t4,l40s"))]
    again = rng.choice((machine, ["--price", "1.50USD/h"], ["--set", "micro_batch_size=1"], []))
    kept = ["--run", OTHER] * (rng.random() < 0.2)
    follow = [
        ["report", RUN, *_format(rng, "html")],
        ["report", *_format(rng)],
        ["export", RUN, "--to", rng.choice(TARGETS)],
        ["runs", "--format", rng.choice(FORMATS)],
        ["recompute", RUN, *again, *FORMULA, *kept, *_format(rng)],
        ["verify", RUN, LOG, *rng.choice(([], ["--next-runs", "3"])), *_format(rng)],
        ["learn", "runs", "--dry-run", *_format(rng)],
        ["tune", *question, *FORMULA, "--trials", "5", "--dry-run", *_format(rng)],
        ["estimate", *question[:1], *_estimated(question[1:]), *FORMULA, *_format(rng)],
        ["compare", *_compared(question), *_format(rng)],
        ["plan", CAMPAIGN, "--parallel", "2", *rng.choice(([], ["--share"])), *_format(rng)],
    ]
    return [
        [*words, "-q"] if words[0] != "runs" else words for words in rng.sample(follow, FOLLOWING)
    ]


def _without(words: list[str], *flags: str, taking: int = 1) -> list[str]:
    """A command line without these options and what they take."""
    found: list[str] = []
    skip = 0
    for word in words:
        skip = 1 + taking if word in flags else max(skip - 1, 0)
        found += [] if skip else [word]
    return found


def _compared(question: list[str]) -> list[str]:
    return _without(question, "--export")


def _estimated(words: list[str]) -> list[str]:
    """The options of `tune` that `estimate` has as well."""
    rest = _without(words, "--deadline", "--budget", "--minimize", "--max-price", "--export")
    return _without(rest, "--spot", taking=0)


def _draw(rng: Random, folder: Path) -> str:
    job = drawn_job(rng)
    (folder / JOB).write_text(json.dumps(job))
    offers = job.pop("hardware")
    lock = job.pop("lock")
    job = {key: job[key] for key in ("model", "method", "data", "train")}
    campaign = {
        "name": "drawn", "hours_from": "model", "hardware": offers,
        "defaults": job | {"lock": lock},
        "runs": [{"name": "one", "repeat": 2, "hours": "1 h"}, {"name": "two", "hours": "2 h"}],
    }  # fmt: skip
    (folder / CAMPAIGN).write_text(json.dumps(campaign))
    question = [JOB] if rng.random() < 0.6 else rng.choice(LINES).split()
    named = tuple(word for word in question if word.startswith("--"))
    more = _asked(rng, ("--export", rng.choice(TARGETS)))
    question += [] if set(named) & set(more) else more
    first = ["tune", *question, *FORMULA, "--trials", "5", "--run", RUN, "-q", *_format(rng)]
    lines = [first, *_commands(rng, question)]
    (folder / "lines.json").write_text(json.dumps(lines))
    (folder / "speed").write_text(rng.choice(("1", "1", "0.6", "2.5")))
    return " ; ".join(" ".join(words) for words in lines)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a folder, with size and time."""
    found = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        found[path.relative_to(folder).as_posix()] = (
            (state.st_size, state.st_mtime_ns) if path.is_file() else (-1, -1)
        )
    return found


def _timeless(tree: Any) -> Any:
    """An answer without how long it took to find."""
    if isinstance(tree, dict):
        return {key: _timeless(own) for key, own in tree.items() if "wall_s" not in key}
    return [_timeless(own) for own in tree] if isinstance(tree, list) else tree


class WrongAnswerError(Exception):
    """What a command line should not have done."""

    def __init__(self, what: str, words: Sequence[str], told: str) -> None:
        super().__init__(f"{what}: {' '.join(words)}: {told[-300:]}")


def _typed(words: Sequence[str]) -> Said:
    """A command line whose exit code is a documented one, and whose words are words."""
    found = said(*words)
    refused = found.code == REFUSED
    wrong = {
        f"exit code {found.code}": found.code not in (*ANSWERS, REFUSED),
        "a refusal without a reason": refused and not found.err.startswith("error: "),
        "a traceback": "Traceback" in found.out + found.err,
        "nothing was said": not refused and words[0] != "export" and not found.out.strip(),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise WrongAnswerError(what, words, found.err)
    return found


def _form(words: list[str]) -> str:
    return words[words.index("--format") + 1] if "--format" in words else "text"


def _as_json(words: list[str]) -> Any:
    """What a command that only reads says in JSON."""
    if "--format" not in words:
        return None
    at = words.index("--format")
    rest = [word for word in words if word != "--verbose"]
    rest[at + 1] = "json"
    found = _typed(rest)
    return json.loads(found.out) if found.code != REFUSED else None


def _figures(payload: Mapping[str, Any]) -> list[str]:
    """The hours and dollars that every form of an answer states."""
    from autotune.domain.units import format_seconds, format_usd

    row = next(
        (payload[key] for key in ("best", "row", "leads", "after") if payload.get(key)), None
    )
    if row is None or not payload.get("lengths_known", True):
        return []
    hours = format_seconds(row["duration_s"]["p50"])
    return [hours, *([format_usd(row["cost_usd"]["p50"])] if row["usd_per_hour"] else [])]


def _agrees(words: list[str], found: Said) -> None:
    """What is printed states what the JSON of the same command holds."""
    payload = _as_json(words)
    if not isinstance(payload, dict) or _form(words) not in ("text", "md", "html"):
        return
    flat = " ".join(found.out.replace("&nbsp;", " ").replace("\\$", "$").split())
    missing = [figure for figure in _figures(payload) if figure not in flat]
    if missing:
        what = f"{missing} is not said"
        raise WrongAnswerError(what, words, found.out)


def _same(words: list[str], one: Said, two: Said) -> None:
    if one.code != two.code:
        what = f"exit code {one.code}, then {two.code}"
        raise WrongAnswerError(what, words, two.err)
    if _form(words) == "json" and one.code != REFUSED:
        same = _timeless(json.loads(one.out)) == _timeless(json.loads(two.out))
    else:
        same = _TOOK.sub("", one.out) == _TOOK.sub("", two.out)
    if not same:
        what = "another answer the second time"
        raise WrongAnswerError(what, words, two.out)


def _step(words: list[str], folder: Path) -> Said:
    """One command line, typed twice where that is meant to change nothing."""
    keeps = "--run" in words or words[0] in ("export", "verify")
    before = _files(folder)
    found = _typed(words)
    after = _files(folder)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    places = ("runs", "home") if keeps else ("home",)
    outside = sorted(name for name in changed if name.partition("/")[0] not in places)
    if outside:
        what = f"{outside[:3]} changed"
        raise WrongAnswerError(what, words, found.err)
    if "--run" not in words:
        _same(words, found, _typed(words))
    if not keeps and found.code != REFUSED:
        _agrees(words, found)
    return found


def _log(folder: Path) -> None:
    """A log of the run that was answered: each step as long as predicted, or times a factor."""
    path = folder / RUN / "recommendation.json"
    best = json.loads(path.read_text())["best"] if path.is_file() else None
    step_s = (best["step_time_s"] if best else 1.0) * float((folder / "speed").read_text())
    rows = "".join(f"{step},{step_s:.6g}\n" for step in range(1, 41))
    (folder / LOG).write_text(f"step,step_time_s\n{rows}")


def _walk(folder: Path) -> None:
    """Type the lines of a walk in its folder. Raises InputError where the first is refused."""
    from autotune.domain.errors import InputError

    lines = json.loads((folder / "lines.json").read_text())
    here = Path.cwd()
    try:
        os.chdir(folder)
        with environment(AUTOTUNE_RUNS=str(folder / "runs"), AUTOTUNE_HOME=str(folder / "home")):
            first = _step(lines[0], folder)
            if first.code == REFUSED:
                raise InputError(first.err)
            told = _typed(["report", RUN, "-q", *lines[0][lines[0].index("--format") :]])
            _same(["report", *lines[0]], first, Said(first.code, told.out, told.err))
            _log(folder)
            for words in lines[1:]:
                _step(words, folder)
    finally:
        os.chdir(here)


@reader
def _walks() -> Reader:
    return Reader("walks", _draw, _walk, share=0.05, commands=3 * (FOLLOWING + 1))
