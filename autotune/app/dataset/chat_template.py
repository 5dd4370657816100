"""A model's chat template, filled in as transformers does it: for a count of what it adds.

The template comes with the model and is not trusted: it runs in Jinja's sandbox, in which values
cannot be changed and nothing of Python is in reach.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_TEMPLATE = 200_000  # characters; the longest known ones have about 20,000


class TemplateRefusesError(ValueError):
    """The template does not take these messages: a role it lacks, or turns out of order."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template that is compiled, and the special tokens that it names."""

    compiled: Any  # jinja2.Template
    specials: dict[str, str]

    def text_of(self, messages: Sequence[dict[str, str]], tools: str = "") -> str:
        """The text that is trained on. Raises TemplateRefusesError."""
        declared = _declared(tools)
        try:
            return str(
                self.compiled.render(
                    messages=[dict(message) for message in messages], tools=declared,
                    add_generation_prompt=False, **self.specials,
                )
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            raise TemplateRefusesError(str(error)[:200]) from None


def _declared(tools: str) -> list[Any] | None:
    try:
        found = json.loads(tools) if tools else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def template_of(settings: dict[str, Any], file: bytes) -> ChatTemplate | None:
    """The template of chat_template.jinja or of tokenizer_config.json; None where there is none.

    None also where jinja2 is not installed, or the template is not one that it can read.
    """
    source = file.decode("utf-8", "replace") if file else settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {i.get("name"): i.get("template") for i in source if isinstance(i, dict)}
        source = named.get("default")
    if not isinstance(source, str) or not source or len(source) > LARGEST_TEMPLATE:
        return None
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    try:
        compiled = environment.from_string(source)
    except TemplateError:
        return None
    specials = {name: _token(settings.get(name)) for name in ("bos_token", "eos_token")}
    return ChatTemplate(compiled, specials)


def _refuse(message: str) -> None:
    raise TemplateRefusesError(message)


def _token(value: object) -> str:
    """A special token as text; some files hold it as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
