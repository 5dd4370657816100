"""The script inside an orchestrator's own file: SkyPilot's `run`, dstack's `commands`, a container.

Source: SkyPilot's YAML specification (run, envs, resources.accelerators, num_nodes, and the
variables that it sets), dstack's `.dstack.yml` reference, Kubernetes' container specification.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OF_SKY = {"resources", "setup", "workdir", "file_mounts", "num_nodes", "envs"}
_SHELLS = {"bash", "sh", "/bin/bash", "/bin/sh", "-c", "-lc", "-ec", "-exc"}
_DEEPEST = 12


def script_in(values: Mapping[str, Any]) -> str | None:
    """The shell script that a task runs; None for what is no task."""
    if isinstance(values.get("run"), str) and _OF_SKY & set(values):
        return "\n".join([*_exports(_environment(values)), values["run"]])
    commands = values.get("commands")
    if values.get("type") == "task" and isinstance(commands, list):
        return "\n".join([*_exports(values.get("env")), *map(str, commands)])
    if "apiVersion" in values and "kind" in values:
        return next(_containers(values, 0), None)
    return None


def _environment(values: Mapping[str, Any]) -> dict[str, Any]:
    """A SkyPilot task's variables, and those that SkyPilot sets of what is asked for."""
    stated = values.get("envs")
    found: dict[str, Any] = dict(stated) if isinstance(stated, dict) else {}
    resources = values.get("resources")
    asked = resources.get("accelerators") if isinstance(resources, dict) else None
    if isinstance(asked, dict) and len(asked) == 1:
        asked = ":".join(str(part) for part in next(iter(asked.items())))
    if isinstance(asked, str) and (count := re.fullmatch(r"[\w.-]+(?::(\d+))?", asked)):
        found["SKYPILOT_NUM_GPUS_PER_NODE"] = count[1] or "1"
    found["SKYPILOT_NUM_NODES"] = values.get("num_nodes") or 1
    return found


def _exports(stated: object) -> list[str]:
    """Lines that set the variables whose value stands in the file."""
    if isinstance(stated, list):  # dstack: NAME or NAME=VALUE
        stated = dict(word.split("=", 1) for word in map(str, stated) if "=" in word)
    if not isinstance(stated, dict):
        return []
    known = {name: value for name, value in stated.items() if value not in (None, "")}
    return [f"export {name}={shlex.quote(str(value))}" for name, value in known.items()]


def _word(text: str) -> str:
    """A word as the shell types it; Kubernetes puts variables in where `$(NAME)` stands."""
    named = re.sub(r"\$\((\w+)\)", r"${\1}", text)
    return f'"{named}"' if named != text and '"' not in text else shlex.quote(text)


def _containers(values: object, depth: int) -> Iterator[str]:
    """What each container of a Kubernetes object runs, variables in front."""
    if depth > _DEEPEST:
        return
    if isinstance(values, list):
        for each in values:
            yield from _containers(each, depth + 1)
    if not isinstance(values, dict):
        return
    for each in values.get("containers") or ():
        words = [str(word) for key in ("command", "args") for word in each.get(key) or ()]
        typed = [word for word in words if word not in _SHELLS]
        env = {e["name"]: e["value"] for e in each.get("env") or () if {"name", "value"} <= set(e)}
        if typed:
            one = typed[0] if len(typed) == 1 else " ".join(map(_word, typed))
            yield "\n".join([*_exports(env), one])
    for each in values.values():
        yield from _containers(each, depth + 1)
