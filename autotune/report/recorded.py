"""A recorded answer read back, checked against the shapes of `schema.py`."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    NotRequired,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from autotune.domain.answer.limits import CONFIDENCE
from autotune.domain.config import completed
from autotune.domain.errors import InputError
from autotune.report.schema import SCHEMA_VERSION, RecommendationPayload
from autotune.report.sections.limits import odds_of_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.report.schema import LimitsPayload


def recorded_payload(content: Mapping[str, Any], where: str) -> RecommendationPayload:
    """The payload of a run folder. Raises InputError when it is of another version or damaged."""
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        msg = f"the answer in {where} has schema version {version!r}, not {SCHEMA_VERSION}"
        raise InputError(msg, "tune again: it was written by another version of autotune")
    content = _with_later_keys(content)
    missing = _first_wrong(RecommendationPayload, content, "")
    if missing:
        msg = f"the answer in {where} is damaged at {missing.lstrip('.')}"
        raise InputError(msg, "tune again with another --run")
    return _with_odds(cast("RecommendationPayload", _with_later_knobs(content)))


def _with_odds(content: RecommendationPayload) -> RecommendationPayload:
    """The answer with how likely its limits are kept, which older records lack."""
    job, best = content["job"], content["best"]
    if "limits" in content:
        return content
    limits: LimitsPayload = {**job["limits"], "confidence": CONFIDENCE}
    found = odds_of_row(limits, best) if best else []
    return {**content, "job": {**job, "limits": limits}, "limits": found}


def _with_later_keys(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer with what is said of a change today; older records hold the user's choices only.

    What is no change by any version is left for the check of shapes.
    """
    changes = content.get("sensitivities")
    if not isinstance(changes, list):
        return content
    return {**content, "sensitivities": [_as_today(each) for each in changes]}


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
        if isinstance(value, dict) and "config" in value:
            found[key] = {**value, "config": completed(value["config"])}
        elif isinstance(value, list):
            found[key] = [
                {**item, "config": completed(item["config"])}
                if isinstance(item, dict) and isinstance(item.get("config"), dict)
                else item
                for item in value
            ]
    return found


def _first_wrong(shape: Any, value: Any, path: str) -> str | None:  # noqa: ANN401 - type hints
    """The path of the first value that is absent or of another kind than the shape says."""
    if is_typeddict(shape):
        if not isinstance(value, dict):
            return path or "the top"
        found = (
            _field(kind, value, path, key)
            for key, kind in get_type_hints(shape, include_extras=True).items()
        )
        return next((place for place in found if place), None)
    origin, inner = get_origin(shape), get_args(shape)
    if origin is list:
        if not isinstance(value, list):
            return path
        places = (_first_wrong(inner[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        return next((place for place in places if place), None)
    if type(None) in inner:
        kind = next(kind for kind in inner if kind is not type(None))
        return None if value is None else _first_wrong(kind, value, path)
    expected = {float: (int, float)}.get(shape, origin or shape)
    return None if shape is Any or isinstance(value, expected) else path


def _field(kind: Any, value: Mapping[str, Any], path: str, key: str) -> str | None:  # noqa: ANN401
    """The same of one key of a mapping; one that need not be there may be absent."""
    optional = get_origin(kind) is NotRequired
    if key not in value:
        return None if optional else f"{path}.{key}"
    return _first_wrong(get_args(kind)[0] if optional else kind, value[key], f"{path}.{key}")
