"""A table of what becomes of a folder of other people's files: `python -m bench.corpus FOLDER`.

Each file is read and priced in this process, without the network, and held against an independent
look at its obvious keys. A folder directly inside FOLDER is one line of the table; trainers are
counted apart from the others, which hold scripts of all kinds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.corpus.verdict import NO_HELP, RIGHT, VERDICTS, WRONG, Verdict, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.job import Job

TRAINERS = ("axolotl", "llamafactory", "torchtune", "litgpt", "handbook", "trl", "unsloth", "peft",
            "qlora")  # fmt: skip
_KINDS = {".yaml", ".yml", ".json", ".py", ".sh", ".md"}
_MOST_BYTES = 400_000
_FENCED = re.compile(
    r"^( *)```(?:bash|shell|sh|console)?[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL
)
_TYPED = re.compile(
    r"^\s*\$?\s*((?:accelerate launch|torchrun|deepspeed|python3? \S+\.py|trl \w+|tune run|"
    r"litgpt finetune\w*|llamafactory-cli train|axolotl train)\b(?:[^\n\\]|\\\n|\\)*)", re.MULTILINE
)  # fmt: skip


def items(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Name, path and text of every file, and of every command of a Markdown page, by itself."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.casefold() not in _KINDS or not path.is_file():
            continue
        if path.stat().st_size > _MOST_BYTES:
            continue
        name, text = str(path.relative_to(folder)), path.read_text("utf-8", errors="replace")
        if path.suffix != ".md":
            yield name, path, text
            continue
        for number, command in enumerate(_commands(text)):
            yield f"{name}#{number}", path.with_suffix(".cmd"), command


def _commands(text: str) -> Iterator[str]:
    for fenced in _FENCED.finditer(text):
        for typed in _TYPED.finditer(fenced[2]):
            if "--" in typed[1] or ".yaml" in typed[1]:
                yield typed[1].strip()


def verdicts(
    folder: Path, only: str = "", jobs: list[tuple[str, Job]] | None = None
) -> dict[str, tuple[Verdict, dict[str, Any]]]:
    """Every file's verdict, and what it rests on; `jobs` takes the job of each that was priced."""
    from bench.corpus.look import look_at
    from bench.corpus.through import read_through

    found = {}
    for name, path, text in items(folder):
        if only and not re.search(only, name):
            continue
        look = look_at(path, text)
        read = read_through(path, text, sharded=look.sharded)
        rests = {
            "look": {"trains": look.trains, "objective": look.objective, **look.facts()},
            "read": read.facts, "refusal": read.refusal, "hint": read.hint,
            "unknown_model": read.unknown_model, "undescribed": read.undescribed,
        }  # fmt: skip
        found[name] = (judged(look, read), rests)
        if jobs is not None and read.priced:
            jobs.append((name, read.jobs[0].job))
    return found


def table(found: dict[str, tuple[Verdict, dict[str, Any]]]) -> str:
    """A line a folder, the share of those in scope, and a line a cause."""
    folders: dict[str, Counter[str]] = {}
    causes: Counter[tuple[str, str]] = Counter()
    for name, (verdict, _) in found.items():
        folders.setdefault(name.split("/", 1)[0], Counter())[verdict.kind] += 1
        if verdict.kind != RIGHT:
            causes[verdict.kind, verdict.cause] += 1
    lines = [f"| folder | files | {' | '.join(VERDICTS)} |", "|---" * (len(VERDICTS) + 2) + "|"]
    total: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    for folder, counts in folders.items():
        total += counts
        trained += counts if folder in TRAINERS else Counter()
        lines.append(_row(folder, counts))
    lines += [_row("**trainers**", trained), _row("**all**", total), ""]
    own = {name: each for name, each in found.items() if name.split("/", 1)[0] in TRAINERS}
    lines += [f"trainers: {_shares(own)}", f"all: {_shares(found)}", ""]
    lines += [f"{n:4} {kind}: {cause}" for (kind, cause), n in causes.most_common()]
    lines += ["", *_unknown_models(found)]
    return "\n".join(lines)


def _unknown_models(found: dict[str, tuple[Verdict, dict[str, Any]]]) -> list[str]:
    """The models that another's shape stood in for, by name, and what would settle them."""
    names: Counter[tuple[bool, str]] = Counter(
        (bool(rests.get("undescribed")), rests["unknown_model"])
        for verdict, rests in found.values()
        if rests.get("unknown_model") and verdict.kind == RIGHT
    )
    settles = {True: "its kind is not described", False: "its config.json, of the hub or a folder"}
    return [f"{n:4} {name} ({settles[kind]})" for (kind, name), n in names.most_common()]


def _row(name: str, counts: Counter[str]) -> str:
    numbers = " | ".join(str(counts[kind]) for kind in VERDICTS)
    return f"| {name} | {counts.total()} | {numbers} |"


def _shares(found: dict[str, tuple[Verdict, dict[str, Any]]]) -> str:
    inside = [verdict for verdict, _ in found.values() if verdict.in_scope]
    counts = Counter(verdict.kind for verdict in inside)
    every = Counter(verdict.kind for verdict, _ in found.values())
    unknown = sum(verdict.unknown_model for verdict in inside)
    kinds = sum(
        verdict.in_scope and bool(rests.get("undescribed")) for verdict, rests in found.values()
    )
    return (
        f"in scope {len(inside)}: right {_share(counts[RIGHT], len(inside))} "
        f"({unknown} with another model's shape: {kinds} are of a kind that is not described, "
        f"{unknown - kinds} not known without the hub); "
        f"of all {len(found)}: wrong {_share(every[WRONG], len(found))}, "
        f"refused without help {_share(every[NO_HELP], len(found))}"
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def main(argv: list[str] | None = None) -> int:
    """Prints the table, or every file's verdict as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.corpus", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--only", default="", help="names that match this expression")
    parser.add_argument(
        "--returned", action="store_true",
        help="put what is given back into the trainers' own parsers as well (make parsers)",
    )  # fmt: skip
    asked = parser.parse_args(argv)
    jobs: list[tuple[str, Job]] = []
    os.environ["AUTOTUNE_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as home:
        os.environ["AUTOTUNE_HOME"] = home
        found = verdicts(asked.folder, asked.only, jobs)
    if asked.format == "json":
        print(json.dumps({
            name: {"verdict": v.kind, "cause": v.cause, "in_scope": v.in_scope, **rests}
            for name, (v, rests) in found.items()
        }, indent=1, default=str))  # fmt: skip
    else:
        print(table(found))
    if asked.returned:
        from bench.corpus.returned import returned, returned_table

        print(returned_table(returned(jobs)), file=sys.stderr if asked.format == "json" else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
