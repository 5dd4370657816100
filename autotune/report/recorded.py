"""A recorded answer read back, checked against its declaration in `schema.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.domain.answer.contract import read
from autotune.domain.config import KNOBS, LATER, completed
from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.report.schema import SCHEMA_VERSION, RecommendationPayload
from autotune.report.sections.how_to_run import ROWS_FILE
from autotune.report.sections.limits import odds_of_row

if TYPE_CHECKING:
    from collections.abc import Mapping


def recorded_payload(content: Mapping[str, Any], where: str) -> RecommendationPayload:
    """The payload of a run folder. Raises InputError when it is of another version or damaged."""
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        msg = f"the answer in {where} has schema version {version!r}, not {SCHEMA_VERSION}"
        raise InputError(msg, "tune again: it was written by another version of autotune")
    content = _with_later_knobs(_with_later_keys(content))
    try:
        _check_knobs(content)
        found = read(RecommendationPayload, content)
    except ValueError as error:
        msg = f"the answer in {where} is damaged at {error}"
        raise InputError(msg, "tune again with another --run") from None
    return found if "limits" in content else _with_odds(found)


def _check_knobs(content: Mapping[str, Any]) -> None:
    """Raise ValueError for a configuration without a knob, or with a value that it cannot have."""
    waiting: list[tuple[str, Any]] = list(content.items())
    while waiting:
        path, here = waiting.pop()
        if isinstance(here, dict):
            waiting += [(f"{path}.{key}", each) for key, each in here.items()]
        elif isinstance(here, list):
            waiting += [(f"{path}.{index}", each) for index, each in enumerate(here)]
        if not (path.endswith(".config") and isinstance(here, dict)):
            continue
        absent = [name for name in KNOBS if name not in here and name not in LATER]
        if absent:
            msg = f"{path}: {absent[0]} is not there"
            raise ValueError(msg)
        for name in KNOBS.keys() & here.keys():
            try:
                same = KNOBS[name].parse(here[name]) == here[name]
            except InputError:
                same = False
            if not same:
                msg = f"{path}.{name}: {shown(here[name])} is no value of {name}"
                raise ValueError(msg)


def _with_odds(found: RecommendationPayload) -> RecommendationPayload:
    """The answer with how likely its limits are kept, which older records lack."""
    best = found.best
    return replace(found, limits=odds_of_row(found.job.limits, best) if best else ())


def _with_later_keys(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer with what is said today and older records leave out.

    Of changes they hold the user's choices only, and their scripts read `ROWS_FILE`. What is no
    answer by any version is left for the check.
    """
    later, job, changes = dict(content), content.get("job"), content.get("sensitivities")
    if isinstance(job, dict):
        later["job"] = {"dataset": ROWS_FILE, **job}
    if isinstance(changes, list):
        later["sensitivities"] = [_as_today(each) for each in changes]
    return later


def _as_today(change: Any) -> Any:  # noqa: ANN401 - whatever the file holds
    if not isinstance(change, dict) or not {"key", "value"} <= change.keys():
        return change
    key, value = change["key"], change["value"]
    later = {
        "change": f"{key}={value}", "knob": key, "class": "quality",
        "opens": f"--set {key}={value}", "fits": True, "unmeasured": False,
        "device": None, "device_count": None, "config": None,
    }  # fmt: skip
    return change | {name: own for name, own in later.items() if name not in change}


def _with_later_knobs(content: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with every row's config complete: knobs that were added since as they were run."""
    found = dict(content)
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(value.get("config"), dict):
            found[key] = {**value, "config": completed(value["config"])}
        elif isinstance(value, list):
            found[key] = [
                {**item, "config": completed(item["config"])}
                if isinstance(item, dict) and isinstance(item.get("config"), dict)
                else item
                for item in value
            ]
    return found
