"""Damaged trainer files: real ones with wrong values, broken layout and hostile parts in them."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st
from ownfiles import FOLDER, syntax_of, values_of

SUFFIX = {"json": ".json", "yaml": ".yaml", "python": ".py", "shell": ".sh"}
ODD_TEXT = [
    "", " ", "auto", "true", "no", "null", "none", "1e400", "-1", "0", "0.5", "1_000", "٣",
    "é" * 70,
    "${micro}", "$BATCH", "../../etc/passwd", "\\\\server\\x", "{{ x }}", "4 rows", "0x10", "2e-4",
    "lora", "qlora", "dora", "full", "sdpa", "flex", "epoch", "a" * 5000, "\u202e4", "\ud800", "\0",
]  # fmt: skip
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(ODD_TEXT)
    | st.sampled_from([10**40, -(10**40), 2**63, 1e308, -0.0, float("nan"), float("inf"), 0, 1, 7])
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "_component_", "enabled", "stage", "0"]), inner,
                      max_size=3),
    max_leaves=4,
)  # fmt: skip
HOSTILE = [
    "x: &a [1, 1]\ny: [*a, *a]\n", "x: !!python/object/apply:os.system ['true']\n", "<<: {a: 1}\n",
    "? [a, b]\n: c\n", "{: }\n", "- 1\n", "---\n---\n", "%YAML 1.1\n---\n", "x: !!binary aGk=\n",
    "\tx: 1\n", "x: 'open\n", "x: [1, 2\n", '"a": 1, \n', "@x: 1\n", "x: 1\nx: 2\n", "...\n",
    "x: 2024-01-01\n", "x: 0o17\n", "x: .nan\n", "x: 1:30\n", "null: 1\n", "1: 2\n", "x: >\n  a\n",
]  # fmt: skip
CODE = [
    "args = TrainingArguments(**kwargs)\n", "SFTConfig(per_device_train_batch_size=f'{n}')\n",
    "n = int(input())\n", "BATCH = BATCH * 2\n", "for BATCH in range(3): pass\n",
    "import argparse\nargs = argparse.ArgumentParser().parse_args()\n",
    "SFTConfig(*a, **{'bf16': 1})",
    "@dataclass\nclass A:\n    r: int = 8\n", "lambda: (yield)\n", "def f(:\n", "  indented\n",
    "x = (\n", "'''open\n", "LoraConfig(r=r, r=8)\n", "match x:\n    case 1: pass\n",
    "print 'old'\n",
    "FastModel.from_pretrained('x', load_in_4bit=not False)\n", "%pip install x\n", "!ls\n",
]  # fmt: skip
SHELL = [
    "BATCH=$(nproc)\n", "python train.py --per_device_train_batch_size $BATCH\n", "cat <<EOF\n",
    "if true; then\n", "--bf16 --bf16\n", "torchrun --nproc_per_node=gpu train.py --max_steps 1\n",
    "accelerate launch --config_file none.yaml x.py --num_train_epochs 1\n", "'\n", "\\\n", "`\n",
    "trl sft --config missing.yaml\n", "A=1 B=$A python x.py --num_train_epochs=$B\n",
]  # fmt: skip


def _paths(values: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [prefix] if prefix else []
    if isinstance(values, dict):
        for key, value in values.items():
            found += _paths(value, (*prefix, key))
    return found


def _with_value(values: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    inner = values.get(head)
    if rest and isinstance(inner, dict):
        value = _with_value(inner, tuple(rest), value)
    return {**values, head: value}


def _without(values: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    head, *rest = path
    if rest and isinstance(values.get(head), dict):
        return {**values, head: _without(values[head], tuple(rest))}
    return {key: value for key, value in values.items() if key != head}


def mappings(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """The file's mapping with some values changed, lost, renamed or added."""
    return damaged_mappings(values_of(name))


@st.composite
def damaged_mappings(draw: st.DrawFn, values: dict[str, Any]) -> dict[str, Any]:
    """A mapping with some values changed, lost, renamed or added."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(_paths(values)))
        how = draw(st.sampled_from(["value", "value", "value", "gone", "renamed", "new"]))
        if how == "value":
            values = _with_value(values, path, draw(ODD))
        elif how == "gone":
            values = _without(values, path) or values
        elif how == "renamed":
            typo = draw(st.sampled_from([path[-1][:-1], path[-1] + "s", path[-1].upper(), ""]))
            values = _with_value(_without(values, path), (*path[:-1], typo), draw(ODD))
        else:
            values = _with_value(values, (draw(st.text(max_size=8)),), draw(ODD))
    return values


@st.composite
def layouts(draw: st.DrawFn, name: str) -> str:
    """The file's text with its layout damaged."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    parts = {"python": CODE, "shell": SHELL}.get(syntax_of(name), HOSTILE)
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.sampled_from(_LAYOUTS))(draw, text, parts)
    return text


def _cut(draw: st.DrawFn, text: str, _: list[str]) -> str:
    return text[: draw(st.integers(0, len(text)))]


def _line(draw: st.DrawFn, text: str, parts: list[str]) -> str:
    lines = text.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines)))
    return "".join([*lines[:at], draw(st.sampled_from(parts)), *lines[at:]])


def _twice(draw: st.DrawFn, text: str, _: list[str]) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at = draw(st.integers(0, len(lines) - 1))
    return "".join([*lines[: at + 1], *lines[at:]])


def _number(draw: st.DrawFn, text: str, _: list[str]) -> str:
    found = list(re.finditer(r"(?<=[ =:(])(?:\d[\d.e-]*|true|false|True|False)", text))
    if not found:
        return text
    spot = draw(st.sampled_from(found))
    return text[: spot.start()] + str(draw(ODD)) + text[spot.end() :]


def _letter(draw: st.DrawFn, text: str, _: list[str]) -> str:
    at = draw(st.integers(0, len(text)))
    odd = draw(
        st.sampled_from(["\0", "\t", "\ufeff", "\u2028", "é", "'", '"', "{", "}", ":", "\x85"])
    )
    return text[:at] + odd + text[at + draw(st.integers(0, 1)) :]


_LAYOUTS = [
    _cut, _line, _line, _twice, _number, _number, _letter,
    lambda _draw, text, _parts: text.replace("\n", "\r\n"),
    lambda _draw, text, _parts: "\ufeff" + text,
    lambda _draw, text, _parts: text.replace("  ", "\t"),
    lambda _draw, text, _parts: text.rstrip("\n"),
]  # fmt: skip


def damaged(name: str) -> st.SearchStrategy[str]:
    """One file of `FILES`, damaged in its values or in its layout."""
    if syntax_of(name) in {"json", "yaml"}:
        as_text = st.sampled_from([None, 2]).flatmap(
            lambda indent: mappings(name).map(lambda v: json.dumps(v, indent=indent, default=str))
        )
        return as_text | layouts(name)
    return layouts(name)
