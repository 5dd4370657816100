"""What there is to count in a record: its text, its chat, or tokens that are there already.

The forms that trainers read are known by their columns; `column` names others. Roles of ShareGPT
(human, gpt) become those of chat templates (user, assistant).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.objective import PAIRED
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.objective import Objective

FORMS = "a row needs input_ids, text, prompt and completion, instruction and output, or messages"
CHATS = ("messages", "conversations", "conversation", "dialogue")
# (question, what belongs to it, answer): read as one message of a user and one of an assistant
PAIRS = (
    ("instruction", ("input", "context"), ("output", "response", "completion")),
    ("question", ("context",), ("answer", "response")),
    ("query", (), ("response", "answer")),
    ("prompt", (), ("response", "output")),
)
ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "bot": "assistant", "model": "assistant", "system": "system",
    "function_call": "assistant", "observation": "tool", "tool": "tool",
}  # fmt: skip
PREFERENCES = {"chosen", "rejected"}
LONGER = "chosen|rejected"  # a column that stands for the longer answer of a pair, if there are any
PAIR = "chosen+rejected"  # the same of rows that have to be pairs
ONE_ANSWER = "completion|label"  # rows of one answer, wanted or not, that may not be pairs
_ASKS = {role for role, means in ROLES.items() if means in {"user", "system"}}  # it has its prompt
_LISTED = 12  # columns that an error names
_TEXT_LETTERS = 3  # from here on a value looks like text


@dataclass(frozen=True, slots=True)
class Row:
    """One row to count: text, a chat, or tokens.

    Text and a chat: a question and its answer, which trainers put into a template of theirs.
    """

    text: str | None = None
    chat: tuple[dict[str, str], ...] = ()
    tokens: int = 0
    tools: str = ""  # declarations that a chat template may show

    @property
    def content(self) -> str:
        """All of its text, for a count that knows no template."""
        if self.text is not None:
            return self.text
        parts = [part for m in self.chat for part in (m["role"], m["content"])]
        return "\n".join([self.tools, *parts] if self.tools else parts)


def names_of(column: str | None, content: dict[str, Any], place: str) -> tuple[str, ...]:
    """The columns that `column` names: itself, or a list with commas. Raises InputError."""
    if column is None:
        return ()
    if column in content:
        return (column,)
    names = tuple(part.strip() for part in column.split(",") if part.strip())
    missing = [name for name in names if name not in content]
    if missing or not names:
        msg = f"{place} has no column {(missing or [column])[0]!r}"
        raise InputError(msg, f"{_columns(content)}; name one with --column or data.column")
    return names


def column_for(objective: Objective) -> str | None:
    """The column that stands for the rows that an objective takes; None where any are taken."""
    if objective not in PAIRED:
        return None
    return ONE_ANSWER if objective == "kto" else PAIR


def row_of(content: dict[str, Any], place: str, column: str | None = None) -> Row:
    """What there is to count of one record. Raises InputError naming its place."""
    if column in {LONGER, PAIR} and content.keys() >= PREFERENCES:
        return _longer(content, place)
    if column == PAIR:
        msg = f"{place} is no pair: it has no {' and no '.join(sorted(PREFERENCES - {*content}))}"
        hint = f"{_columns(content)}; rename yours, or count one by --set data.column=NAME"
        raise InputError(msg, hint)
    if column == ONE_ANSWER and content.keys() >= PREFERENCES:
        msg = f"{place} is a preference pair (chosen, rejected), and KTO takes one answer a row"
        hint = (
            "trl.unpair_preference_dataset makes two rows of each pair; --objective dpo takes pairs"
        )
        raise InputError(msg, hint)
    if column in {LONGER, ONE_ANSWER}:
        return row_of(content, place)
    stated = names_of(column, content, place)
    return _stated(content, stated, place) if stated else _known_form(content, place)


def _longer(content: dict[str, Any], place: str) -> Row:
    """The prompt with the longer of the two answers: both are padded to the longest of a batch.

    Source: trl 1.16 trainer/dpo_trainer.py, DataCollatorForPreference.
    """
    asked = content.get("prompt")
    found = []
    for name in ("chosen", "rejected"):
        answer = content[name]
        if not isinstance(answer, list):
            found.append(Row(_text([asked or "", answer], "", place)))
            continue
        first = answer[0] if answer and isinstance(answer[0], dict) else {}
        whole = str(first.get("role", first.get("from", ""))) in _ASKS
        before = asked if isinstance(asked, list) and not whole else []
        if isinstance(asked, str) and asked and not whole:
            before = [{"role": "user", "content": asked}]
        found.append(_chat([*before, *answer], place, content.get("tools")))
    return max(found, key=lambda row: len(row.content))


def _known_form(content: dict[str, Any], place: str) -> Row:
    """The row by the columns that trainers know."""
    if content.keys() >= PREFERENCES:
        raise _unknown_form(content, place)
    if content.get("input_ids") is not None:
        return _ids(content["input_ids"], place)
    chat = next((content[name] for name in CHATS if content.get(name) is not None), None)
    if chat is not None:
        return _chat(chat, place, content.get("tools"))
    if "text" in content:
        return Row(_text([content["text"]], "", place))
    if "prompt" in content and "completion" in content:
        parts = [content["prompt"], content["completion"]]
        if all(isinstance(part, list) for part in parts):
            return _chat(parts[0] + parts[1], place, content.get("tools"))
        return Row(_text(parts, "", place))
    for asks, context, answers in PAIRS:
        answer = next((name for name in answers if name in content), None)
        if asks in content and answer is not None:
            asked = [content[n] for n in (asks, *context) if content.get(n) not in {None, ""}]
            return _pair(asked, content[answer], place)
    raise _unknown_form(content, place)


def _unknown_form(content: dict[str, Any], place: str) -> InputError:
    listed = ", ".join(map(repr, list(content)[:_LISTED])) or "none"
    msg = f"{place} has the columns {listed}: {FORMS}"
    if content.keys() >= PREFERENCES:
        msg = f"{place} is a preference pair (chosen, rejected), and a supervised run takes one"
        named = "prompt,chosen" if isinstance(content.get("prompt"), str) else "chosen"
        hint = f"--column {named} counts the chosen answers; --objective dpo trains on both"
        return InputError(msg, hint)
    if len(content) == 1 and _is_rows(next(iter(content.values()))):
        name = next(iter(content))
        return InputError(msg, f"jq -c '.[{json.dumps(name)}][]' FILE > rows.jsonl writes its rows")
    return InputError(msg, f"{_columns(content)}; name what to count with --column or data.column")


def _columns(content: dict[str, Any]) -> str:
    """The columns found, those that look like text first."""
    text = [name for name, value in content.items() if _looks_like_text(value)]
    other = [name for name in content if name not in text]
    found = []
    if text:
        found.append(f"columns that look like text: {', '.join(text[:_LISTED])}")
    if other:
        found.append(f"{'others' if text else 'columns'}: {', '.join(other[:_LISTED])}")
    return "; ".join(found) or "there is no column"


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(i, dict) for i in value)


def _looks_like_text(value: object) -> bool:
    if isinstance(value, list):
        return _is_rows(value)
    return isinstance(value, str) and sum(c.isalpha() for c in value[:200]) >= _TEXT_LETTERS


def _stated(content: dict[str, Any], names: tuple[str, ...], place: str) -> Row:
    """The columns that the user named, joined by a line end where they are several."""
    values = [content[name] for name in names]
    if len(values) == 1 and isinstance(values[0], list):
        first = values[0][0] if values[0] else None
        if isinstance(first, dict):
            return _chat(values[0], place, content.get("tools"))
        return _ids(values[0], place)
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str):
            kind = "empty" if value is None else f"{type(value).__name__}"
            msg = f"{place}: the column {name!r} is {kind}, and text is needed"
            raise InputError(msg, f"{_columns(content)}; name another with --column or data.column")
    return Row(_text(values, "\n", place))


def _pair(asked: list[Any], answer: object, place: str) -> Row:
    """A question with what belongs to it, and its answer, which may be empty."""
    whole = [*asked, answer] if answer else asked
    question = _text(asked, "\n", place)
    chat = (
        {"role": "user", "content": question},
        {"role": "assistant", "content": str(answer or "")},
    )
    return Row(_text(whole, "\n", place), chat)


def _ids(tokens: object, place: str) -> Row:
    if not isinstance(tokens, list) or not all(type(item) is int for item in tokens[:8]):
        msg = f"{place}: input_ids must be a list of token numbers"
        raise InputError(msg)
    return Row(tokens=len(tokens))


def _text(parts: list[Any], between: str, place: str) -> str:
    if not all(isinstance(part, str) for part in parts):
        msg = f"{place}: the row's fields must be text"
        raise InputError(msg, FORMS)
    text = between.join(parts)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        msg = f"{place}: the text holds half of a surrogate pair, which no encoding has"
        raise InputError(msg, "repair the escape sequence (\\ud800 to \\udfff)") from None
    return text


def _chat(messages: object, place: str, tools: object = None) -> Row:
    """Messages of role and content (or ShareGPT's from and value); of parts, the text counts."""
    if isinstance(messages, str):  # CSV has no lists
        try:
            messages = json.loads(messages)
        except (ValueError, RecursionError):
            messages = None
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        msg = f"{place}: messages must be a list of objects with role and content"
        raise InputError(msg)
    found = []
    for message in messages:
        role = str(message.get("role", message.get("from", "")))
        found.append({"role": ROLES.get(role, role), "content": _said(message, place)})
    declared = tools if isinstance(tools, str) else json.dumps(tools) if tools else ""
    return Row(chat=tuple(found), tools=declared)


def _said(message: dict[str, Any], place: str) -> str:
    content = message.get("content", message.get("value")) or ""
    if isinstance(content, list):
        parts = [p for p in content if isinstance(p, dict)]
        content = "\n".join(str(p.get("text") or p.get("value") or "") for p in parts)
    calls = message.get("tool_calls")
    if calls:
        content = f"{content}{json.dumps(calls, default=str)}"
    return _text([content], "", place)
