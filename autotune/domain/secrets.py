"""Secrets in a user's own files: never written, printed or reported, and named as left out.

What is one: the value of a key that is known to hold one, text that looks like a token of the
services that trainers speak to, and what a variable of this process holds whose name says so. A
reference to a variable is none, and stays.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left

LEFT_OUT = "LEFT-OUT"
SHORTEST = 8  # characters of a variable that are searched for: shorter ones are words
_NAMES = (
    r"(?:hub|hf|huggingface|hugging_face_hub|huggingface_hub|access|auth|bearer|refresh|github|gh"
    r"|comet|neptune|mlflow_tracking|replicate|slack|telegram|discord)_(?:api_)?token"
    r"|use_auth_token|(?:[a-z0-9]+_)*api_?key|(?:[a-z0-9]+_)*secret(?:_access)?(?:_key)?"
    r"|(?:[a-z0-9]+_)*(?:pg)?(?:password|passwd)|aws_(?:access_key_id|session_token)"
)
# Source: the forms that the services document: Hugging Face, OpenAI and Anthropic, GitHub, GitLab,
# AWS, Google, Slack, PyPI, and W&B's 40 hexadecimal digits behind its variable (by its key).
_KEYS = _NAMES.replace("_", "[_-]")
_FORMS = (
    r"(?<![A-Za-z0-9_-])(?:(?:hf|api_org)_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|pypi-[A-Za-z0-9_-]{20,}|wandb_v1_[A-Za-z0-9_-]{16,})"
)
_STARTS = (
    "hf_", "api_org_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "AKIA", "ASIA", "AIza", "xox", "pypi-", "wandb_v1_",
)  # fmt: skip
# A word that may be such a key, however it is quoted or escaped, and its value behind it.
_VALUE = (
    r"(?P<mark>\\*[\"']?\]?(?:\s{0,9}[:=,]\s{0,9}|\s{1,9})\\*[\"']?)"
    r"(?P<value>[A-Za-z0-9_+/=.~!@%-]{6,})(?![A-Za-z0-9_.]*[(\[])"
)
_KEYED = re.compile(
    r"(?:(?<=\\n)|(?<=\\t)|(?<=\\r)|(?<![A-Za-z0-9_\\]))"
    r"(?P<key>(?=[A-Za-z0-9_-]{0,80}?(?:token|key|secret|passw))[A-Za-z][A-Za-z0-9_-]{2,80})"
    + _VALUE,
    re.IGNORECASE,
)
_REST = re.compile(r"[A-Za-z0-9_-]*+" + _VALUE, re.IGNORECASE)  # of such a word, behind its hint
# Every such word holds one of these, at most 80 of its characters from where it begins.
_HINTS = ("token", "key", "secret", "passw")
_REACH = 80
_UP_TO_HINT = re.compile(r"[A-Za-z0-9_-]*\Z", re.IGNORECASE)
_USER = r"(?P<user>[^\s/:@\"']{0,100}):(?P<word>[^\s/@\"']{1,300})@"
_ADDRESS = r"(?i)(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)" + _USER
_LOGGED_IN = re.compile("://" + _USER)  # every such address holds it, and few texts do
_NO_SECRETS = frozenset({"false", LEFT_OUT.casefold(), "string", "required", "optional", "secret"})


def without_secrets(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with `LEFT-OUT` in the place of secrets, and what was left out: keys and kinds."""
    names: list[str] = []

    def token(_: re.Match[str]) -> str:
        names.append("a token")
        return LEFT_OUT

    def address(found: re.Match[str]) -> str:
        if found["word"].startswith("$") or found["word"] == LEFT_OUT:
            return found[0]
        names.append("a password in an address")
        return f"{found['scheme']}{found['user']}:{LEFT_OUT}@"

    text = _without_keyed(text, names)
    if any(start in text for start in _STARTS):
        text = re.sub(_FORMS, token, text)  # compiled where there may be one, as what is below
    for name, value in _held():
        if value in text:
            names.append(name)
            text = text.replace(value, LEFT_OUT)
    if _LOGGED_IN.search(text):
        text = re.sub(_ADDRESS, address, text)
    return text, tuple(dict.fromkeys(names))


def _held() -> list[tuple[str, str]]:
    """Variables of this process that hold secrets by their names, the longest value first."""
    found = [
        (name, value)
        for name, value in os.environ.items()
        if len(value) >= SHORTEST and _is_key(name) and value.casefold() not in _NO_SECRETS
    ]
    return sorted(found, key=lambda item: -len(item[1]))


def _is_key(name: str) -> bool:
    """Whether a key holds a secret by its name."""
    hinted = any(hint in name.casefold() for hint in _HINTS)
    return hinted and re.fullmatch(_KEYS, name, re.IGNORECASE) is not None


def _hinted(text: str) -> list[tuple[int, int]]:
    """Where hints begin and end, in their order and whatever their case."""
    plain = text.casefold()
    if len(plain) != len(text):  # a letter that becomes two stays what it is
        pairs = ((letter, letter.casefold()) for letter in text)
        plain = "".join(own if len(own) == 1 else letter for letter, own in pairs)
    found = []
    for hint in _HINTS:
        at = plain.find(hint)
        while at >= 0:
            found.append((at, at + len(hint)))
            at = plain.find(hint, at + 1)
    return sorted(found)


def _without_keyed(text: str, names: list[str]) -> str:
    """The text without the values of keys that hold secrets, whose names are added."""
    parts, done, at = [], 0, 0
    hints = _hinted(text)
    while found := _keyed(text, at, hints):
        at = found.end("key")
        if not _is_secret(found):
            continue
        key, mark = found["key"], found["mark"]
        names.append(key)
        assigned = key.isupper() and mark in {"=", '="', '=\\"'}  # of a shell
        parts += [text[done : found.start("value")], f"${{{key}:-}}" if assigned else LEFT_OUT]
        done = at = found.end()
    return "".join([*parts, text[done:]])


def _keyed(text: str, at: int, hints: list[tuple[int, int]]) -> re.Match[str] | None:
    """The first word from there on that may be a key with its value, sought where a hint is."""
    for hint, end in hints[bisect_left(hints, (at, 0)) :]:
        if _REST.match(text, end):
            start = max(at, hint - _REACH)
            before = _UP_TO_HINT.search(text, start, hint)
            for place in range(before.start() if before else start, hint + 1):
                if found := _KEYED.match(text, place):
                    return found
        at = hint + 1
    return None


def _is_secret(found: re.Match[str]) -> bool:
    mark, value = found["mark"], found["value"]
    option = found.string.endswith("--", 0, found.start())
    written = ":" in mark or "=" in mark or option
    named = option and value.isupper() and _is_key(value)  # --secret HF_TOKEN: a variable
    known = value.casefold() in _NO_SECRETS or value.startswith("os.") or named
    return written and not known and _is_key(found["key"])


def left_out_note(names: tuple[str, ...]) -> list[str]:
    """What to say of secrets that were left out; nothing where there were none."""
    if not names:
        return []
    what = ", ".join(names)
    note = (
        f"{what}: left out of everything that is written and printed ({LEFT_OUT} stands there); "
        "give it to the run by the environment, as HF_TOKEN or WANDB_API_KEY"
    )
    return [note]
