"""Input damaged where its structure is: values of a tree, cells of a table, words of a line.

Every draw comes from one `random.Random`, so a seed and a number name an input for ever.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    Node = tuple[Any, Any]  # a mapping or a list, and the key or index in it

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 3.5, 0.1, -0.0, 2**31, 2**53 + 1, 2**63, 10**40, -(10**40), 10**400,
    1e-300, 5e-324, 1e30, 1e300, 1.7976931348623157e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "1e999", "1e-300", "nan", "inf", "null", "none", "true", "auto", "all",
    "1 h", "-2 h", "1e300 h", "2 USD", "1e400 USD", "3 GB", "4 rows", "50k", "1.5M", "9" * 60, "١٢",
    "h100", "8xh100", "h100:0", "0xh100", "cpu", "p4d.24xlarge", "lora", "qlora", "full", "sdpa",
    "../../etc/passwd", "/dev/null", ".", "..", "~", "C:\\x", "a/b", "file:///x", "$(id)", "`id`",
    "{{ x }}", "${x}", "%s%n", "<script>alert(1)</script>", "=1+1", "--help", "-", "\\", "'", '"',
    "\u202e4", "\ufeff1", "\x00", "\x1b[31m", "\ud800", "é" * 70, "😀", "a" * 5000, "\n", "a\nb: c",
    "2024-01-01", "1:30", "0x10", "1_000", "1,000", "torch.float16", "bfloat16", "NaN", "Infinity",
)  # fmt: skip
USUAL = (
    1, 2, 8, 16, 64, 512, 2048, 0.05, "bf16", "fp16", "none", "full", "sdpa", "flash_2", "zero2",
    "lora", "qlora", "adamw_torch", "paged_adamw_8bit", "nf4", "true", "false", "all-linear",
    "gpt2", "Qwen/Qwen2.5-7B", "24h", "60 USD", "2 GB/s", "0.8", "longest", "s3", "h100", "json",
)  # fmt: skip
SCRAPS = (
    "\x00", "\ufeff", "\t", "\r", "\n", "\n\n", ":", ": ", "- ", ",", ",,", ";", "{", "}", "[",
    "]", '"',
    "'", "#", "&a ", "*a", "!!python/object/apply:os.system ['true']", "!t ", "<<: ", "|", ">", "%",
    "@", "`", "? ", "---\n", "...\n", "\\", "\\u0000", "1e999", "NaN", "null", "\u2028", "é", "=",
    "$(x)", "--", "<EOF", "/*", "'''", "lambda", "٣",
)  # fmt: skip
DEEP = 60
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def value(rng: Random, depth: int = 0) -> Any:
    """A value that somebody's file might hold, and nobody's should."""
    kind = rng.randrange(10 if depth < 2 else 8)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 7:
        return rng.choice(TEXTS)
    if kind == 7:
        return rng.choice((None, True, False))
    count = rng.choice((0, 1, 1, 2, 3, 40))
    if kind == 8:
        return [value(rng, depth + 1) for _ in range(count)]
    return {_key(rng): value(rng, depth + 1) for _ in range(count)}


def _key(rng: Random) -> Any:
    return rng.choice((*TEXTS[:24], 1, 0, -1, 1.5, True, None, math.nan, "name", "value", "x"))


def tree(rng: Random, seed: Any) -> Any:
    """A tree with one to three of its nodes changed, lost, moved, renamed or multiplied."""
    whole = copy.deepcopy(seed)
    for _ in range(rng.choice((1, 1, 2, 3))):
        nodes = _nodes(whole)
        if not nodes:
            return value(rng)
        whole = _edited(rng, whole, nodes)
    return whole


def _nodes(whole: Any) -> list[Node]:
    found: list[Node] = []
    waiting = [whole]
    while waiting:
        here = waiting.pop()
        keys = (
            list(here)
            if isinstance(here, dict)
            else range(len(here))
            if isinstance(here, list)
            else ()
        )
        for key in keys:
            found.append((here, key))
            waiting.append(here[key])
    return found


def _edited(rng: Random, whole: Any, nodes: Sequence[Node]) -> Any:
    holder, key = rng.choice(nodes)
    how = rng.randrange(12)
    if how > 9:
        holder[key] = _near(rng, holder[key])
    elif how < 4:
        holder[key] = value(rng)
    elif how == 4:
        del holder[key]
    elif how == 5:
        other, name = rng.choice(nodes)
        holder[key] = copy.deepcopy(other[name])
    elif how == 6:
        holder[key] = [copy.deepcopy(holder[key])] * rng.choice((1, 2, 300))
    elif how == 7:
        holder[key] = _deep(rng, holder[key])
    elif isinstance(holder, dict):
        old = holder.pop(key) if how == 8 else value(rng)
        holder[_key(rng) if rng.random() < 0.5 else f"{key}s"] = old
    else:
        holder.insert(key, value(rng))
    return whole


def _near(rng: Random, one: Any) -> Any:
    """A value like this one: another size, another word, the other truth."""
    if isinstance(one, bool):
        return not one
    if isinstance(one, int | float):
        return rng.choice((one * 2, one + 1, one * 1000, one // 3, -one, str(one), 0, 1, 10**9))
    if isinstance(one, str):
        return rng.choice((*TEXTS[:40], one.upper(), f"{one} ", phrase(rng, one)))
    return list(one.values()) if isinstance(one, dict) else one[:1] if isinstance(one, list) else 1


def _deep(rng: Random, inner: Any) -> Any:
    for _ in range(rng.choice((1, 3, DEEP))):
        inner = [inner] if rng.random() < 0.5 else {"x": inner}
    return inner


def as_json(whole: Any) -> bytes:
    """JSON text, NaN and infinities as Python writes them; keys become text."""
    plain = {str(k): v for k, v in whole.items()} if isinstance(whole, dict) else whole
    return json.dumps(_text_keys(plain), indent=1).encode("utf-8", "surrogatepass")


def _text_keys(whole: Any) -> Any:
    if isinstance(whole, dict):
        return {str(key): _text_keys(each) for key, each in whole.items()}
    return [_text_keys(each) for each in whole] if isinstance(whole, list) else whole


def as_yaml(whole: Any) -> bytes:
    """YAML in flow style below the first level, so that keys of every kind can be written."""
    if isinstance(whole, dict) and whole:
        lines = [f"{_scalar(key)}: {_flow(each)}" for key, each in whole.items()]
        return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    return _flow(whole).encode("utf-8", "surrogatepass")


def _flow(whole: Any) -> str:
    if isinstance(whole, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {_flow(v)}" for k, v in whole.items()) + "}"
    if isinstance(whole, list):
        return "[" + ", ".join(_flow(each) for each in whole) + "]"
    return _scalar(whole)


def _scalar(one: Any) -> str:
    if isinstance(one, float) and not math.isfinite(one):
        return ".nan" if math.isnan(one) else ".inf" if one > 0 else "-.inf"
    return json.dumps(one if isinstance(one, str | int | float | bool | None) else str(one))


def lines(rng: Random, seed: bytes) -> bytes:
    """JSON lines with one line's tree damaged, lost, doubled, torn or out of order."""
    rows = seed.splitlines()
    at = rng.randrange(len(rows))
    how = rng.randrange(6)
    if how < 3:
        rows[at] = b" ".join(as_json(tree(rng, json.loads(rows[at]))).split(b"\n"))
    elif how == 3:
        rows[at] = rows[at][: rng.randrange(len(rows[at]) + 1)]
    elif how == 4:
        rng.shuffle(rows)
    else:
        rows[at:at] = [rng.choice([*rows, b"", b"[]", b"null", b"{}", b"\xff"])] * rng.choice(
            (1, 2, 50)
        )
    return b"\n".join(rows) + rng.choice((b"\n", b""))


def table(rng: Random, seed: bytes) -> bytes:
    """A CSV with cells changed, columns lost, renamed or doubled, and rows of another length."""
    rows = list(csv.reader(io.StringIO(seed.decode())))
    for _ in range(rng.choice((1, 1, 2, 4))):
        row = rng.choice(rows)
        at = rng.randrange(max(1, len(row)))
        how = rng.randrange(7)
        if how < 4:
            row[at : at + 1] = [str(rng.choice((*NUMBERS, *TEXTS)))[:6000]]
        elif how == 4:
            row[at : at + 1] = []
        elif how == 5:
            rows[0][min(at, len(rows[0]) - 1)] = rng.choice((*rows[0], *TEXTS[:20]))
        else:
            rows.insert(rng.randrange(len(rows) + 1), rng.choice((list(row), [], row * 3)))
        rows = [each for each in rows if each] or [["x"]]
    text = io.StringIO()
    csv.writer(text, lineterminator=rng.choice(("\n", "\r\n"))).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def text(rng: Random, seed: bytes) -> bytes:
    """Bytes cut, put in, doubled, exchanged or turned over, whatever they mean."""
    content = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(content) + 1)
        how = rng.randrange(7)
        if how == 0:
            del content[at:]
        elif how < 3:
            content[at:at] = rng.choice(SCRAPS).encode("utf-8", "surrogatepass")
        elif how == 3:
            content[at : at + rng.choice((1, 2, 9, 80))] = b""
        elif how == 4:
            content[at:at] = content[max(0, at - rng.choice((4, 40, 400))) : at]
        elif how == 5:
            found = list(_NUMBER.finditer(bytes(content)))
            if found:
                start, end = rng.choice(found).span()
                content[start:end] = str(rng.choice((*NUMBERS[:-3], *TEXTS[:12]))).encode()[:500]
        elif content:
            content[at % len(content)] = rng.randrange(256)
    return bytes(content)


def words(rng: Random, seed: Sequence[str], pool: Sequence[str]) -> list[str]:
    """A command line with words changed, lost, doubled, exchanged or put in."""
    found = list(seed)
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(len(found) + 1)
        how = rng.randrange(8)
        fresh = rng.choice((*pool, *TEXTS, str(rng.choice(NUMBERS))))
        values = [n for n, word in enumerate(found) if n and found[n - 1].startswith("--")]
        if how > 5 and values:
            found[rng.choice(values)] = str(rng.choice((*USUAL, *TEXTS[:40])))
        elif how == 5 and rng.random() < 0.5:
            found[at:at] = [fresh, str(rng.choice(USUAL))]
        elif how < 2 and at < len(found):
            found[at] = fresh
        elif how == 2 and at < len(found):
            found[at] = phrase(rng, found[at])
        elif how == 3 and at < len(found):
            del found[at]
        else:
            found.insert(at, fresh)
    return found


def phrase(rng: Random, seed: str) -> str:
    """A short text with characters changed, or one with another mixed in."""
    damaged = text(rng, seed.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogateescape")
    if rng.random() < 0.2:
        damaged = rng.choice(
            ("{0}{1}", "{1} {0}", "{0}-{1}", "{0},{1}", "{0}@{1}", "{0}:{1}")
        ).format(damaged, rng.choice(TEXTS))
    return damaged[:6000]


OTHERS: tuple[Callable[[Path], object], ...] = (  # what may lie where a file is looked for
    lambda path: path.mkdir(),
    lambda path: path.touch(),
    os.mkfifo,
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("nothing-is-there"),
)
