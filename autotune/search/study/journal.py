"""The Optuna journal of a search whose proposals need no sampler: written without loading Optuna.

Any Optuna tool reads it: line for line it is what Optuna writes for the same trials. The study of a
search that asks a sampler, or in a storage of the user's, is Optuna's own (`storage`).
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.search.study.record import attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from optuna.study import Study

    from autotune.search.axes import Axis, ParamValue
    from autotune.search.study.record import TrialRecord

JOURNAL_FILE = "study.log"
JOB_KEY = "job_key"  # study attributes: the job, and what its measurements speak of
JOB_NAME = "autotune:job"  # what a person calls it
IDENTITY = "calibrated_identity"
OTHER_SPACE = "resume with the space that the run was recorded with, or start a new run"
# Source: optuna 5.0, storages/journal/_storage.py `JournalOperation`, study/_study_direction.py,
# trial/_state.py; a journal must stay readable by later versions.
CREATE_STUDY, SET_STUDY_USER_ATTR, CREATE_TRIAL = 0, 2, 4
MINIMIZE, COMPLETE, FAIL = 1, 1, 3


def clear(folder: Path) -> Path:
    """Where a run folder's journal is written anew: what an earlier search left is taken away."""
    path = folder / JOURNAL_FILE
    for leftover in folder.glob(f"{path.name}*"):
        leftover.unlink()
    return path


class StudyJournal:
    """A study of finished trials. `folder` None: it is kept nowhere."""

    def __init__(
        self, folder: Path | None, name: str, axes: Sequence[Axis], attributes: Mapping[str, str]
    ) -> None:
        """Begin the journal anew, with the study's name and attributes."""
        self._path = clear(folder) if folder else None
        self._axes = {axis.name: axis for axis in axes}
        self._distributions = {axis.name: _distribution(axis) for axis in axes}
        self._write(
            [
                {"op_code": CREATE_STUDY, "study_name": name, "directions": [MINIMIZE]},
                *(
                    {"op_code": SET_STUDY_USER_ATTR, "study_id": 0, "user_attr": {key: value}}
                    for key, value in attributes.items()
                ),
            ]
        )

    def add(self, records: Iterable[TrialRecord]) -> None:
        """Trials that have ended. Raises InputError for one of another search space."""
        self._write([self._trial(record) for record in records])

    def _trial(self, record: TrialRecord) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        return {
            "op_code": CREATE_TRIAL,
            "study_id": 0,
            "datetime_start": now,
            "state": FAIL if record.value is None else COMPLETE,
            "value": record.value,
            "values": None,
            "datetime_complete": now,
            "distributions": self._distributions,
            "params": self._params(record),
            "user_attrs": attributes_of(record),
            "system_attrs": {
                **record.sampler_state,
                **{f"constraints:{name}": value for name, value in record.constraints.items()},
            },
            "intermediate_values": {},
        }

    def _params(self, record: TrialRecord) -> dict[str, float]:
        """A count as a number, the place of a word among its words."""
        if set(record.params) != set(self._axes):
            raise other_space(record)
        return {name: self._place(record, name, value) for name, value in record.params.items()}

    def _place(self, record: TrialRecord, name: str, value: ParamValue) -> float:
        axis = self._axes[name]
        if value not in axis.values:
            raise other_space(record)
        place = axis.values.index(value)
        return float(place) if axis.ordinal else place

    def _write(self, entries: list[dict[str, Any]]) -> None:
        if self._path is None or not entries:
            return
        worker = f"autotune-{os.getpid()}"
        lines = (
            json.dumps({"op_code": entry.pop("op_code"), "worker_id": worker, **entry})
            for entry in entries
        )
        try:
            with self._path.open("ab") as file:
                file.write(("\n".join(lines) + "\n").encode())
        except OSError as error:
            error.filename = str(self._path)  # a write names no file
            raise


def claim(study: Study, identity: str) -> None:
    """Say of a study what its measurements speak of. Raises InputError where that is another."""
    found = study.user_attrs.get(IDENTITY)
    if found is None:
        study.set_user_attr(IDENTITY, identity)
    elif found != identity:
        msg = f"the study {study.study_name!r} holds measurements of another job or space"
        raise InputError(msg, "name another study, or tune the job that it was made for")


def other_space(record: TrialRecord) -> InputError:
    """What to say of a recorded trial whose parameters this search has not."""
    msg = f"trial {record.number} of the record is not in this search space"
    return InputError(msg, OTHER_SPACE)


def _distribution(axis: Axis) -> str:
    """The values of a parameter, as Optuna writes them."""
    if axis.ordinal:
        attributes: dict[str, Any] = {
            "log": False, "step": 1, "low": 0, "high": len(axis.values) - 1,
        }  # fmt: skip
        return json.dumps({"name": "IntDistribution", "attributes": attributes})
    choices = {"choices": axis.values}
    return json.dumps({"name": "CategoricalDistribution", "attributes": choices})
