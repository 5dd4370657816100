"""A shell script: which of its commands starts the training, and the variables it is made of.

The command stands there as it is typed, or as the text of a variable that is run later. Of several
one is read, and the others are named.
"""

from __future__ import annotations

import math
import re
import shlex
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from autotune.domain.errors import InputError, NoTraining, unknown
from autotune.trainers.scope import trains_nothing
from autotune.trainers.syntax.command_line import (
    ASSIGNED,
    CONFIG,
    NAME,
    SIZED,
    WORD,
    Command,
    parse_command,
    rewrite_command,
)
from autotune.trainers.syntax.shell_words import (
    COUNTED_WORDS,
    array_spans,
    computed_text,
    shell_arrays,
    with_arrays,
    without_comments,
    written_files,
)
from autotune.trainers.unread import decides

if TYPE_CHECKING:
    from autotune.trainers.contract import Changes

_STARTED_SHELL = re.compile(
    r"^[^#\n]*\b(?:bash|sh|sbatch)[ \t]+([\w./-]+\.\w+)"
    r"(?:[^#\n]*?[ \t=]([\w./-]+\.(?:ya?ml|json))\b)?",
    re.MULTILINE,
)
MOST = 64  # launches of one command in loops
STARTS = r"\b(deepspeed|torchrun|accelerate\s+launch|python[\d.]*|uv\s+run|trl|litgpt|mpirun)\s"
# Words that a line begins with that starts no training, though it may name one.
_NO_START = re.compile(
    r"\s*(if|elif|while|until|test|echo|printf|read|rm|mkdir|cp|mv|ln|cat|tee|ls|cd|sed|grep|"
    r"curl|wget|export|local|declare|readonly|source|pip3?|conda|git|return|die|log|info)\b"
    r"|\s*(\[|\.\s)"
)
# A program and the file of its settings.
_BY_CONFIG = (
    r"\.py\b.*--(config|config_path|config_file|yaml_config|cfg|train_args_file)[ =]"
    rf"|{STARTS}.*\.py\s+(\\\n\s*)?[\w./-]+\.(ya?ml|json)(\s|$)"
)
# A program by itself, whose name says that it trains: what it trains then stands in it.
_BY_NAME = STARTS + r".*\b\w*(train|sft|dpo|kto|orpo|tune|lora)\w*(\.py\b|\s|$)"
# A trainer's own program, told to train: its defaults may be all that decides the size of a run.
_BY_PROGRAM = r"(^|\s)(swift\s+(sft|pt|rlhf)|litgpt\s+finetune\w*|trl\s+(sft|dpo|kto|orpo))\s"
# Of launches without flags those that train: by what starts them on devices, or by their names.
_TRAINS = r"\b(deepspeed|torchrun|accelerate\s+launch)\s.*\.py\b|" + _BY_NAME
_SCRIPT = re.compile(r"(?<!\S)(\S+\.py)\b|(?<=\s)-m\s+([A-Za-z_][\w.]*)")
_STARTED = STARTS + r"|\b(axolotl|llamafactory-cli|tune|swift)\s"
_FLAGS = re.compile(r"[ \t]*--[a-z]\w*[ \t=]")
# Lines joined by a backslash, the last of which is flags alone.
_GOES_ON = re.compile(r"\A(?!\s*#)(?s:.)*\\[ \t]*\n[ \t]*--\w[^\n|;&>#]*\n\Z")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'""", re.DOTALL)
_LABEL = re.compile(r"\s*\(?-[\w-]+([ \t]*\|[ \t]*-[\w-]+)*[ \t]*\)")  # of a `case`: an option read
_TEXT = re.compile(r"""^[ \t]*(?:export[ \t]+)?\w+=(?=["'])""", re.MULTILINE)
_SHELL_TEXT = re.compile(r"""\b(?:ba|z|da)?sh[ \t]+-\w*c[ \t]+(?=["'])""")  # bash -c "..."
_LOOP = re.compile(
    r"""^[ \t]*for[ \t]+(\w+)[ \t]+in[ \t]+([\w .,:/@+"'-]+?)[ \t]*(?:;|$)""", re.MULTILINE
)
_EACH = re.compile(r'"?\$\{(?P<name>[A-Za-z_]\w*)\[[@*]\]\}"?')  # every word of an array
_POSITION = re.compile(r"\$\{\d+:-([^}$`]*)\}")  # ${2:-4}: the script's own default
_TYPED = re.compile(
    r"\$(\d|@|\*|\{\d+\}|\{(\w+)#\*=\})"
)  # what the user types behind the script's name


def command_spans(text: str, name: str) -> list[tuple[int, int]]:
    """Where the launch commands of a shell script stand, with their continued lines.

    Raises InputError where there is none.
    """
    held = _held(text)
    typed = [span for span in _spans(text, SIZED) if not _inside(span, held)]
    found = sorted([*typed, *(inner for _, inner in held)])
    if not found:
        named = rf"(\b(train|sft|\w*finetune\w*)\b|\btune\s+run\b).*{CONFIG.pattern}"
        found = _spans(text, named, put=True)
    found = found or _spans(text, _BY_CONFIG) or _spans(text, _BY_PROGRAM)
    found = found or _spans(text, _BY_CONFIG, put=True) or _spans(text, _BY_NAME)
    found = found or _spans(text, _BY_NAME, put=True)  # a loop or a variable holds the script
    if not found:
        msg = f"{name} holds 0 launch commands with a batch size, epochs or steps"
        own = name.rpartition("/")[2]
        started = (m for m in _STARTED_SHELL.finditer(text) if m[1].rpartition("/")[2] != own)
        by = next(started, None)
        hint = 'give the command itself: --from-args "python train.py --..."'
        if by is not None:
            hint = f"it starts {by[1]}: give that script as JOB"
            hint += f", or the settings that it is handed, {by[2]}" if by[2] else ""
        plain = [text[slice(*each)] for each in _spans(text, STARTS + r".*\.py\b")]
        plain = [] if by is not None else [each for each in plain if not trains_nothing(each)]
        hint = f"it starts {_script(plain[-1])}: give that script as JOB" if plain else hint
        raise NoTraining(msg, hint)
    return found


def _held(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Commands that are the text of a variable: the span of the assignment, and of the command."""
    found = []
    for match in _TEXT.finditer(text):
        word = WORD.match(text, match.end())
        if word is None or word.group()[-1] != word.group()[0] or '\\"' in word.group():
            continue
        begin, end = word.start() + 1, word.end() - 1
        inner = text[begin:end]
        if re.search(STARTS, inner) and re.search(SIZED, inner):
            end -= len(inner) - len(inner.rstrip(" \t\r\n\\"))
            found.append(((match.start(), word.end()), (begin, end)))
    return [*found, *_in_a_shell(text)]


def _in_a_shell(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Commands that another shell is handed as a text, in a container or on another machine."""
    found = []
    for match in _SHELL_TEXT.finditer(text):
        word = WORD.match(text, match.end())
        inner = word.group()[1:-1] if word is not None else ""
        trains = re.search(rf"({STARTS}).*({SIZED})|{_BY_CONFIG}|{_BY_NAME}", inner, re.DOTALL)
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()].lstrip()
        if word is not None and trains and '\\"' not in inner and not line.startswith("#"):
            found.append(((match.start(), word.end()), (word.start() + 1, word.end() - 1)))
    return found


def _inside(span: tuple[int, int], held: list[tuple[tuple[int, int], tuple[int, int]]]) -> bool:
    return any(span[0] < end and begin < span[1] for (begin, end), _ in held)


def _spans(text: str, pattern: str, *, put: bool = False) -> list[tuple[int, int]]:
    """put: what the script's variables hold stands in their place."""
    found, at = [], 0
    names, arrays, bound = shell_names(text) if put else {}, shell_arrays(text), array_spans(text)
    for block in _blocks(text):
        begin, at = at, at + len(block)
        whole = block.strip()
        kept = bool(ASSIGNED.fullmatch(whole) and WORD.fullmatch(whole))
        kept = kept or _LABEL.match(block) is not None or _starts_nothing(block)
        if kept or whole.startswith(("#", "--")):  # flags alone: their command is a comment
            continue
        if any(start <= begin < end for start, end in bound):
            continue
        if re.search(pattern, with_arrays(with_names(block, names), arrays), re.DOTALL):
            found.append((begin, begin + len(block.rstrip())))
    return found


def _starts_nothing(block: str) -> bool:
    """Whether a line is of words that start no program, outside quotes, though it may name one."""
    if _NO_START.match(block) is None:
        return False
    return re.search(_STARTED, _QUOTED.sub("", block)) is None


def _blocks(text: str) -> list[str]:
    """The lines of a script; lines joined by a backslash are one, with a blank behind it too.

    So is a line of flags behind one that only lacks its backslash. A comment goes no further than
    its line.
    """
    found: list[str] = []
    joined = False
    for line in without_comments(text).splitlines(keepends=True):
        if joined or (_FLAGS.match(line) and found and _GOES_ON.search(found[-1])):
            found[-1] += line
        else:
            found.append(line)
        joined = line.rstrip().endswith("\\") and not found[-1].lstrip().startswith("#")
    return found


def shell_names(text: str) -> dict[str, str]:
    """Variables that a script binds to one plain text, at the start of a line.

    Plain is also what names of those that stand before it, or a default of the script's own: what
    the user may type behind the script's name in its place is left out. Machines and devices that
    `#SBATCH` asks for have the names that Slurm gives them.
    """
    seen: dict[str, list[str]] = {}
    for block in _blocks(text):
        match = ASSIGNED.fullmatch(block.strip())
        if match is None:
            continue
        seen.setdefault(match.group(1), []).append(_assigned(match.group(1), match.group(2)))
    found = _of_sbatch(text)
    for name, every in seen.items():
        values = [value for value in every if not _TYPED.fullmatch(value)] or every
        values = list(dict.fromkeys(values))  # one that is bound to the same again is that
        value = _POSITION.sub(r"\1", values[0])
        value = NAME.sub(lambda m: found.get(m[1] or m[3], m[0] if m[2] is None else m[2]), value)
        value = re.sub(r"\\\n", " ", computed_text(value, found))  # one line goes on in the next
        options = value.lstrip().startswith("--")  # the rest of a command: its flags are read
        if len(values) == 1 and not set("`(" if options else "$`(") & set(value):
            found[name] = value
    once = {name: words[0] for name, words in _looped(text).items() if name not in seen}
    return {**once, **found}


# Source: sbatch's manual of Slurm 25.05, its output environment variables.
_SBATCH = re.compile(
    r"^#SBATCH\s+(?:--nodes[= ]|-N\s*)(?P<nodes>\d+)\s*(?:#.*)?$"
    r"|^#SBATCH\s+--(?:gpus-per-node|gres)[= ](?:gpu:)?(?:[\w.-]+:)?(?P<gpus>\d+)\s*(?:#.*)?$",
    re.MULTILINE,
)
_ARRAY = re.compile(r"^#SBATCH\s+(?:--array[= ]|-a\s*)(\d+(?:-\d+|,)[\d,:%-]*)", re.MULTILINE)
_SLURM = {"nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "gpus": ("SLURM_GPUS_ON_NODE",)}


def _of_sbatch(text: str) -> dict[str, str]:
    """Slurm's variables of what the script's own header asks for."""
    stated = [(kind, m[kind]) for m in _SBATCH.finditer(text) for kind in _SLURM if m[kind]]
    return {name: value for kind, value in stated for name in _SLURM[kind]}


def _assigned(name: str, text: str) -> str:
    """The word that is assigned; of `X=${X:-1}` what X is where nobody stated it."""
    stripped = re.sub(r"\s+#.*", "", text.strip()).strip('"')
    if (computed := computed_text(stripped)) != stripped:
        return computed
    if COUNTED_WORDS.fullmatch(stripped):
        return stripped
    if stripped.startswith("$((") and stripped.endswith("))"):
        return stripped  # a sum of variables, which those before it are put into
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return "$("
    if len(words) != 1:
        return "$("
    match = NAME.fullmatch(words[0])
    return match[2] if match and match[1] == name and match[2] is not None else words[0]


def _looped(text: str) -> dict[str, list[str]]:
    """Variables of loops over words that stand there, and those words; each of one loop only."""
    arrays = shell_arrays(text)

    def words(match: re.Match[str]) -> str:
        held = arrays.get(match["name"])
        return match[0] if held is None or held.is_open else held.text

    text = _EACH.sub(words, text)
    loops = [(match[1], _words(match[2])) for match in _LOOP.finditer(text)]
    names = [name for name, _ in loops]
    return {name: words for name, words in loops if names.count(name) == 1}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


class Launch(NamedTuple):
    """One start of a training: the span of its command, and the values of the loops around it."""

    begin: int
    end: int
    line: int  # from 1 on
    looped: dict[str, str]

    @property
    def name(self) -> str:
        """What `--variant` calls it."""
        values = (f"{name}={value}" for name, value in self.looped.items())
        return ", ".join([f"line {self.line}", *values])


def launches(text: str, name: str) -> list[Launch]:
    """Every launch of a script in its order: each command, with each value of its loops.

    Commands that prepare data or evaluate are none, where the script trains as well.

    Raises InputError where there is none, or too many.
    """
    loops = _looped(text)
    found = []
    spans = command_spans(text, name)
    training = [each for each in spans if not trains_nothing(text[slice(*each)])]
    for begin, end in training or spans:
        put = {m[1] or m[3] for m in NAME.finditer(text[begin:end])}
        around = {name: words for name, words in loops.items() if name in put and len(words) > 1}
        line = text.count("\n", 0, begin) + 1
        if math.prod(map(len, around.values())) > MOST:
            around = {}  # named as a loop, and not taken apart
        for values in product(*around.values()):
            looped = dict(zip(around, values, strict=True))
            found.append(Launch(begin, end, line, looped))
    return found


def chosen_launch(found: list[Launch], wanted: str) -> int:
    """The place of a launch by its name or number (from 1 on). Raises InputError."""
    for place, launch in enumerate(found):
        if wanted.strip() in {launch.name, str(place + 1)}:
            return place
    names = [launch.name for launch in found]
    listed = "; ".join(f"{number}: {name}" for number, name in enumerate(names[:8], start=1))
    what = "variant"
    raise unknown(what, wanted[:80], names, f"the script launches {listed}", "--variant")


def parse_shell(text: str, name: str, launch: int = 0) -> Command:
    """A launch command of a shell script, and on which lines the others stand.

    launch: its place among `launches`.
    """
    every = launches(text, name)
    taken = every[launch]
    names = {**shell_names(text), **taken.looped}
    typed = text[taken.begin : taken.end]
    found = parse_command(typed, names, shell_arrays(text))
    others = {each.line: None for each in every if each.begin != taken.begin}
    if not re.search(
        SIZED, with_arrays(typed, shell_arrays(text))
    ):  # by a file: other programs name some
        words = {each.line: with_names(text[each.begin : each.end], names) for each in every}
        same = {line for line, typed in words.items() if set(found.program) <= set(typed.split())}
        same |= {line for line, typed in words.items() if re.search(_BY_NAME, typed, re.DOTALL)}
        others = {line: None for line in others if line in same}
    found.beside = tuple(_beside(text, every, names))
    found.unknown += [with_names(words, names) for words in _added(text, taken.begin)]
    found.others = tuple(others)
    found.written = written_files(text, names)
    found.array = next((match[1] for match in _ARRAY.finditer(text)), "")
    found.swept = tuple(
        f"{name} {', '.join(word for word in words if word != taken.looped.get(name, words[0]))}"
        for name, words in _looped(text).items()
        if len(words) > 1 and re.search(rf"\$\{{?{name}\b", text[taken.begin : taken.end])
    )
    return found


def _beside(text: str, every: list[Launch], names: dict[str, str]) -> list[str]:
    """Other trainings that a script starts, which state no size where they stand: no launches."""
    taken, held = [(each.begin, each.end) for each in every], _held(text)
    programs = {_script(with_names(text[slice(*span)], names)) for span in taken}
    found = []
    for begin, end in _spans(text, _TRAINS, put=True):
        span = (begin, end)
        if _inside(span, held) or any(begin < last and first < end for first, last in taken):
            continue
        typed = with_names(text[begin:end], names)
        script = _script(typed)
        if script and script not in programs and not trains_nothing(typed):
            found.append(f"{script} on line {text.count(chr(10), 0, begin) + 1}")
    return found


def _script(command: str) -> str:
    """The script or module that a command starts, or nothing."""
    match = _SCRIPT.search(command)
    return next((word for word in match.groups() if word), "") if match else ""


def _added(text: str, begin: int) -> list[str]:
    """What the script adds to the variable whose text a command is: `CMD="$CMD --bf16"`.

    begin: of the command.
    """
    holder = re.search(r"(\w+)=[\"']$", text[:begin])
    if holder is None:
        return []
    more = rf"""^[ \t]*{holder[1]}(?:\+=["']?|=["']\$\{{?{holder[1]}\}}?)[ \t]*([^"'\n]+)"""
    words = [match.strip() for match in re.findall(more, text, re.MULTILINE)]
    flags = {word: word.split()[0].lstrip("-") for word in words if word}
    return [word for word, flag in flags.items() if decides(flag) is not False]


def with_names(text: str, names: dict[str, str]) -> str:
    """The text with what variables hold in their place."""
    return NAME.sub(lambda m: names.get(m[1] or m[3], m[0]), text) if names else text


def rewrite_shell(text: str, changes: Changes, name: str, launch: int = 0) -> str:
    """The script with some flags of one of its launch commands changed."""
    begin, end = launches(text, name)[launch][:2]
    changed = rewrite_command(text[begin:end], changes, shell_names(text), shell_arrays(text))
    quote = text[begin - 1 : begin]
    if quote in {'"', "'"} and changed.count(quote) > text[begin:end].count(quote):
        msg = f"{name}: its command is text in quotes, and {', '.join(changes)} needs quotes inside"
        raise InputError(msg, "change it by hand, or --export hf or trl")
    return text[:begin] + changed + text[end:]
