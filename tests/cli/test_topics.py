"""`autotune help TOPIC`: what a topic says is what the program does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from commandline import typed

from autotune.app.job.defaults import VRAM_HEADROOM
from autotune.cli.application import COMMANDS, application
from autotune.cli.commands.topics import ALSO, TOPICS
from autotune.domain import errors
from autotune.orchestrators.registry import ORCHESTRATORS
from autotune.trainers.registry import FORMATS

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(TOPICS.glob("*.txt"))}
ROOT = Path(__file__).parents[2]
LINES, COLUMNS = 24, 84


def _samples() -> list[tuple[str, str]]:
    """Every command line of the topics, with what a line that goes on says, without its remark."""
    found = []
    for name, text in TEXTS.items():
        joined = re.sub(r"\n {6}(?=--)", " ", text)  # an option on the next line
        lines = re.findall(r"^ {2}(autotune .*)$", joined, re.MULTILINE)
        spans = re.findall(r"`(autotune [^`]*)`", joined.replace("\n", " "))
        found += [(name, re.split(r"\s{3,}", line)[0]) for line in [*lines, *spans]]
    return found


@pytest.mark.parametrize("topic", TEXTS)
def test_a_topic_is_one_screen_with_a_title(topic: str, tmp_path: Path) -> None:
    lines = TEXTS[topic].splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert (bool(lines[0]), lines[1]) == (True, "")
    assert typed("help", topic, home=tmp_path, COLUMNS="100").stdout == TEXTS[topic]


def test_without_a_topic_all_are_listed_with_their_titles(tmp_path: Path) -> None:
    told = typed("help", home=tmp_path, COLUMNS="100")
    assert told.returncode == 0
    for name, text in TEXTS.items():
        assert re.search(
            rf"^  {name} +{re.escape(text.splitlines()[0])}$", told.stdout, re.MULTILINE
        )


def test_a_mistyped_topic_is_answered_with_the_nearest(tmp_path: Path) -> None:
    told = typed("help", "memroy", home=tmp_path)
    assert told.returncode == 2
    assert "did you mean memory" in told.stderr
    assert "`autotune help` lists the topics" in told.stderr


def test_a_shell_completes_topics_and_commands(tmp_path: Path) -> None:
    asked = {"_AUTOTUNE_COMPLETE": "complete_bash", "COMP_WORDS": "autotune help mem"}
    told = typed(home=tmp_path, COMP_CWORD="2", **asked)
    assert told.stdout.split() == ["memory"]


def test_a_command_is_a_topic_too(tmp_path: Path) -> None:
    asked, own = typed("help", "learn", home=tmp_path), typed("doctor", "--help", home=tmp_path)
    assert "Learning" in asked.stdout  # a topic first
    assert typed("help", "doctor", home=tmp_path).stdout == own.stdout
    assert own.returncode == 0


@pytest.mark.parametrize(
    ("word", "topic"), [("qlora", "methods"), ("OOM", "memory"), ("flash_attention", "packing")]
)
def test_a_topic_is_found_by_other_words(word: str, topic: str, tmp_path: Path) -> None:
    assert typed("help", word, home=tmp_path, COLUMNS="100").stdout == TEXTS[topic]


def test_another_word_hides_no_topic_and_no_command() -> None:
    assert set(ALSO.values()) <= set(TEXTS)
    assert not set(ALSO) & {*TEXTS, *COMMANDS}


@pytest.mark.parametrize(("topic", "line"), _samples())
def test_every_command_line_of_a_topic_can_be_typed(topic: str, line: str) -> None:
    _, command, *words = shlex.split(line)
    if command == "help":
        assert words[0] in TEXTS
        return
    assert command in COMMANDS, topic
    made = getattr(typer.main.get_command(application()), "commands")[command]  # noqa: B009 - typed away
    assert made.make_context(command, words).params is not None


@pytest.mark.parametrize("topic", TEXTS)
def test_every_option_that_a_topic_names_is_one_of_some_command(topic: str) -> None:
    commands = getattr(typer.main.get_command(application()), "commands")  # noqa: B009 - typed away
    known = {word for each in commands.values() for p in each.params for word in p.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXTS[topic])) <= known


def test_the_variables_are_those_that_the_program_reads() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "autotune").rglob("*.py"))
    read = {name for name in re.findall(r"AUTOTUNE_[A-Z]+", code) if name != "AUTOTUNE_PROBE"}
    told = set(re.findall(r"^  (AUTOTUNE_[A-Z]+)", TEXTS["environment"], re.MULTILINE))
    assert told == read  # the one left out is a mark of our own on a probe's processes
    for name in re.findall(r"\bHF_[A-Z_]+|NO_COLOR", TEXTS["environment"]):
        assert name in code


def test_the_exit_codes_are_those_of_the_errors() -> None:
    told = {int(code) for code in re.findall(r"^  (\d+) ", TEXTS["exit-codes"], re.MULTILINE)}
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = {each.exit_code for each in kinds if issubclass(each, errors.AutotuneError)}
    assert raised <= told
    epilog = application().info.epilog
    assert told == {int(code) for code in re.findall(r"\b(\d+) ", str(epilog))}


def test_what_is_exported_and_kept_free_is_named_as_it_is() -> None:
    for orchestrator in ORCHESTRATORS.values():
        assert re.search(rf"\b({orchestrator.name}|{orchestrator.title})\b", TEXTS["files"])
    titles = {"hf": "Hugging Face", "trl": "TRL", "llamafactory": "LLaMA-Factory"}
    for name in FORMATS:
        assert titles.get(name, name).casefold() in TEXTS["files"].casefold()
    assert f"{100 * VRAM_HEADROOM:.0f} % headroom" in TEXTS["memory"]


@pytest.mark.parametrize(("topic", "command"), [("job", "tune"), ("campaign", "plan")])
def test_the_file_that_a_topic_shows_is_answered(topic: str, command: str, tmp_path: Path) -> None:
    lines = [line[2:] for line in TEXTS[topic].splitlines() if re.match(r"  +\S", line)]
    file = tmp_path / "shown.yaml"
    file.write_text("\n".join(line for line in lines if not line.startswith("autotune ")) + "\n")
    more = ["--dry-run"] if command == "tune" else []
    done = typed(command, str(file), *more, "--fidelity", "formula", home=tmp_path, cwd=tmp_path)
    assert done.returncode in {0, 4}, done.stderr


def test_a_topic_costs_no_heavy_import() -> None:
    says = (
        "import sys; from autotune.cli.application import run; run(['help', 'memory']);"
        " print(*sorted({'numpy', 'optuna', 'ruamel', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
