"""`autotune help TOPIC`: one screen on one question, from a file of `topics`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

TOPICS = Path(__file__).parents[1] / "topics"
# Other words that people ask a topic by.
ALSO = {
    word: topic
    for topic, words in {
        "campaign": "campaigns schedule",
        "files": "axolotl trl hf llamafactory llama-factory ms-swift torchtune litgpt unsloth",
        "job": "job-file yaml",
        "machines": "machine gpu gpus device network nodes instance",
        "memory": "oom out-of-memory vram cuda-out-of-memory fit fits",
        "methods": "method lora qlora full int8 nf4 4bit 8bit dora rslora rank dpo kto orpo",
        "packing": "allow settings knobs kernels liger flash flash-attention offload optimizer",
        "prices": "price cost",
        "probes": "probe measure",
        "spot": "preemptible interruptible interruptions",
        "time": "hours duration interval intervals deadline confidence accuracy",
        "workers": "ray slurm postgresql postgres multi-gpu",
    }.items()
    for word in words.split()
}


def _known(incomplete: str) -> list[str]:
    """What a shell completes: topics, then commands."""
    from autotune.cli.application import COMMANDS

    names = [*(path.stem for path in sorted(TOPICS.glob("*.txt"))), *COMMANDS]
    return [name for name in names if name.startswith(incomplete)]


def help(  # noqa: A001 - the word that is typed
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="A topic or a command. Without one, all topics are listed.",
            autocompletion=_known,
        ),
    ] = None,
) -> None:
    """Explain one thing on one screen: memory, prices, exit codes, ...

    For example: autotune help memory
    """
    from autotune.cli.application import COMMANDS, application
    from autotune.domain.errors import unknown

    titles = {path.stem: path for path in sorted(TOPICS.glob("*.txt"))}
    topic = ALSO.get((topic or "").casefold().replace("_", "-"), topic)
    if topic is None:
        _print("\n".join([*_listed(titles), "", "autotune help TOPIC, or autotune COMMAND --help"]))
    elif topic in titles:
        _print(titles[topic].read_text(encoding="utf-8").rstrip("\n"))
    elif topic in COMMANDS:
        application([topic, "help"])([topic, "--help"], prog_name="autotune", standalone_mode=False)
    else:
        named = [*titles, *COMMANDS]
        raise unknown(
            kind="topic", value=topic, known=named, hint="`autotune help` lists the topics"
        )


def _listed(titles: dict[str, Path]) -> list[str]:
    """A line for each topic: its name and its first line."""
    width = max(map(len, titles))
    return [
        f"  {name:{width}}  {path.read_text(encoding='utf-8').partition(chr(10))[0]}"
        for name, path in titles.items()
    ]


def _print(text: str) -> None:
    from autotune.cli.output import as_wide, columns

    if columns() < max(map(len, text.splitlines())):  # paragraphs fill the narrow lines anew
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    typer.echo(as_wide(text))
