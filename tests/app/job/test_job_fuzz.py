"""Nothing in a job file raises anything but an InputError."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobfiles import WHOLE

from autotune.app.job import load as load_job
from autotune.app.job.file import Document
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["1 h", "2 USD", "1e999 h", "-1 GB", "nan", "\0", "cpu", "full", "none", "h100:0", "9" * 50]
    ),
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(values: object, head: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(values, dict):
        items = list(values.items())
    elif isinstance(values, list):
        items = list(enumerate(values))
    return [path for key, value in items for path in ((*head, key), *paths(value, (*head, key)))]


PATHS = paths(WHOLE)


@st.composite
def mutations(draw: st.DrawFn) -> dict[str, Any]:
    """The whole job file with one to three values replaced, removed or added."""
    values = copy.deepcopy(WHOLE)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(PATHS))
        target: Any = values
        for part in parents:
            try:
                target = target[part]
            except (TypeError, KeyError, IndexError):
                break
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "replace" and isinstance(target, dict):
            target[last] = draw(JUNK)
        elif action == "remove" and isinstance(target, dict):
            target.pop(last, None)
        elif isinstance(target, dict):
            target[draw(st.text(max_size=8))] = draw(JUNK)
    return values


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=mutations(), sets=st.dictionaries(st.sampled_from(
    ["data.max_length", "train.steps", "method.kind", "precision", "data.lengths.p50", "x"]
), st.text(max_size=8), max_size=2), gpus=st.lists(st.text(max_size=8), max_size=1))  # fmt: skip
def test_no_mutation_of_a_job_file_raises_anything_but_an_input_error(
    tmp_path: Path, values: dict[str, Any], sets: dict[str, str], gpus: list[str]
) -> None:
    document, overrides = Document(values, "fuzz"), Overrides(gpus=gpus, set_values=sets)
    steps, message = 1, "fine"
    try:
        steps = min(named.job.steps for named in load_job._jobs(document, overrides, tmp_path))
    except InputError as error:
        message = error.message
    assert steps >= 0
    assert 0 < len(message) < 10_000


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(str.encode),
        st.text("{}[]&*!:-,'\"#|>%@ \nab1", max_size=80).map(str.encode),
    )
)
def test_no_bytes_raise_anything_but_an_input_error(tmp_path: Path, content: bytes) -> None:
    for name in ("fuzz.yaml", "fuzz.json"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError):
            load_job.load_job(path)
