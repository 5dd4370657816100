"""Where the Optuna study lives, and how a record becomes one of its trials.

It lives in memory, in a journal in the run folder, or in a storage of the user's. The record that
outlives it is `record`; what is proposed and tried is `study`.
"""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.paths import near, whole
from autotune.frozen import dataclass
from autotune.search.study import lines
from autotune.search.study.backends import CLOSED_S, PATIENCE_S, connect, patient
from autotune.search.study.journal import (
    IDENTITY,
    JOB_KEY,
    JOB_NAME,
    JOURNAL_FILE,
    StudyJournal,
    clear,
    other_space,
)
from autotune.search.study.owner import OWNER, Owner
from autotune.search.study.record import TrialLog, attributes_of, workers_of
from autotune.search.study.refusals import without_password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from autotune.search.axes import Axis
    from autotune.search.study.record import TrialRecord


MOST_LISTED = 8  # studies that are named where the one asked for is not there


@dataclass(frozen=True, slots=True)
class StudyStore:
    """Where a search is kept: its record, if it has a run folder, and its study."""

    log: TrialLog | None
    storage: str | None
    study_name: str
    job_key: str
    job_name: str = ""

    def study(self, *, resume: bool) -> Study:
        """The study, opened or created. Raises InputError as `open_study`."""
        return open_study(
            run_dir=self.log.path.parent if self.log else None,
            storage=self.storage,
            name=self.study_name,
            job_key=self.job_key,
            job_name=self.job_name,
            resume=resume,
        )

    def journal(self, axes: Sequence[Axis], identity: str) -> StudyJournal:
        """The study of a search that asks no sampler, begun anew beside its record."""
        folder = self.log.path.parent if self.log else None
        named = {JOB_KEY: self.job_key, IDENTITY: identity}
        return StudyJournal(folder, self.study_name, axes, named)


@contextmanager
def stored(
    run_dir: Path | None, header: dict[str, str], storage: str | None, study_name: str,
    job_name: str, *, resume: bool,
) -> Iterator[StudyStore]:  # fmt: skip
    """Where a search is kept while it runs. header: of its record. Raises InputError."""
    log = TrialLog(run_dir, header, resume=resume) if run_dir else None
    with log or nullcontext():
        if log:
            log.gather()
        yield StudyStore(log, storage, study_name, header["job_key"], job_name)


def open_study(
    *, run_dir: Path | None, storage: str | None, name: str, job_key: str, resume: bool,
    job_name: str = "",
) -> Study:  # fmt: skip
    """The study of this search: in the user's storage, the run folder's journal, or memory.

    The journal is a view of the run's record and is written anew each time. Raises InputError for
    a storage that cannot be opened, or that holds the study of another job.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with quiet():
        if storage is None:
            inside = _journal(clear(run_dir)) if run_dir else None
            study = optuna.create_study(storage=inside, study_name=name, direction="minimize")
        else:
            study = _in_storage(storage, name, job_key, job_name, resume=resume)
        _agree(study, job_key, job_name, storage)
    return study


def whole_url(url: str) -> str:
    """A storage's URL that means the same from every folder: SQLite's file may be relative."""
    scheme, mark, rest = url.partition(":///")
    path, question, query = rest.partition("?")
    relative = bool(path) and not path.startswith((":", "/", "file:"))
    if not mark or scheme.partition("+")[0] != "sqlite" or not relative:
        return url
    return f"{scheme}{mark}{whole(path)}{question}{query}"


def _sqlite_file(url: str) -> str | None:
    """The file of a SQLite URL, empty where it has none; None for another kind of storage."""
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] != "sqlite":
        return None
    path, _, query = rest.removeprefix("/").partition("?")
    return "" if path == ":memory:" or "mode=memory" in query else path


def _shared(url: str) -> str:
    """The URL. Raises InputError for a database that only one process ever sees."""
    if _sqlite_file(url) == "":
        msg = f"storage {url} is in the memory of one process: no worker can see it"
        raise InputError(msg, "leave --storage out, or name a file: sqlite:///study.db")
    return url


def _shared_here(url: str) -> str:
    """The URL. Raises InputError where its file is not here: opening it would make an empty one."""
    path = _sqlite_file(_shared(url))
    if path and not path.startswith("file:") and not Path(path).exists():
        msg = f"there is no file {near(path)} here, though the search is said to be in it"
        raise InputError(
            msg, "correct its path; for workers on other machines, which do not have the file, "
            "start the search with --storage postgresql+psycopg://..."
        )  # fmt: skip
    return url


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's notes that a part of it is experimental."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _journal(path: Path) -> BaseStorage:
    """A fresh journal that any Optuna tool can read while the search runs.

    The run folder is held by this process and its record is what lasts, so the journal needs
    neither Optuna's lock, which outlives a killed holder by 30 s, nor to reach the disk with every
    line. For the same reason nobody else writes to it, and it is never read back from the file.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend

    class RunJournal(BaseJournalBackend):
        """Lines go to the operating system at once, and to the disk when it likes."""

        def __init__(self) -> None:
            self._lines: list[bytes] = []

        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            return [json.loads(line) for line in self._lines[log_number_from:]]

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            lines = [json.dumps(log).encode() + b"\n" for log in logs]
            with path.open("ab") as file:
                file.write(b"".join(lines))
            self._lines += lines

    return JournalStorage(RunJournal())


def shared_study(
    *, run_dir: Path, storage: str | None, name: str, job_key: str, resume: bool,
    marks: Mapping[str, Any] = MappingProxyType({}), tell: Callable[[str], None] = lambda _: None,
) -> Study:  # fmt: skip
    """The study of a search of several workers, opened or created by whoever leads it.

    Without a storage it is the run folder's journal, written anew where no worker lives. A server
    that is away is waited for where a search goes on: it was there. marks: what a new one says of
    itself before it says whose it is. Raises InputError as `open_study`.
    """
    import optuna

    job_name = str(marks.get(JOB_NAME, ""))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with quiet():
        if storage is not None:
            patience_s = PATIENCE_S if resume else 0.0
            study = _in_storage(
                _shared(storage), name, job_key, job_name, resume=resume, patience_s=patience_s,
                tell=tell,
            )  # fmt: skip
        else:
            path = run_dir / JOURNAL_FILE if workers_of(run_dir) else clear(run_dir)
            study = optuna.create_study(
                storage=shared_journal(path), study_name=name, direction="minimize",
                load_if_exists=True,
            )  # fmt: skip
        _agree(study, job_key, job_name, storage or near(run_dir), marks)
    return study


def joined_study(
    *, run_dir: Path | None, storage: str | None, name: str,
    tell: Callable[[str], None] = lambda _: None,
) -> Study:  # fmt: skip
    """The study that a worker joins. Raises InputError where there is none of that name.

    A server that is away is waited for, which is told once.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with quiet():
        opened = (
            connect(_shared_here(storage), PATIENCE_S, tell, CLOSED_S)
            if storage
            else _journal_of(run_dir)
        )
        place = without_password(storage) if storage else near(run_dir or ".")
        try:
            study = optuna.load_study(storage=opened, study_name=name)
            _check_ours(study, place)
            return study  # noqa: TRY300 - a KeyError says that there is none
        except KeyError:
            names = [found.study_name for found in opened.get_all_studies()]
    listed = ", ".join(names[-MOST_LISTED:]) or "none"
    msg = f"{place} holds no study {name!r}"
    raise InputError(
        msg, f"studies there: {listed}; `autotune tune --score probe --workers 1` starts one"
    )  # fmt: skip


def _journal_of(run_dir: Path | None) -> BaseStorage:
    path = (run_dir or Path()) / JOURNAL_FILE
    if not path.is_file():
        msg = f"{near(path.parent)} holds no search that could be joined"
        if not path.parent.is_dir():
            what = "is a file" if path.parent.exists() else "does not exist"
            msg = f"the run folder {near(path.parent)} {what}"
        raise InputError(
            msg, "start it with `autotune tune --score probe --workers 1`, or name --storage"
        )  # fmt: skip
    return shared_journal(path)


def shared_journal(path: Path) -> BaseStorage:
    """The journal of a run folder. Raises InputError as `lines.of_file`."""
    return patient(lines.of_file(path), near(path))


def _in_storage(
    url: str, name: str, job_key: str, job_name: str, *, resume: bool, patience_s: float = 0.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Study:  # fmt: skip
    import optuna

    opened = connect(url, patience_s, tell)
    try:
        return optuna.create_study(
            storage=opened, study_name=name, direction="minimize", load_if_exists=resume
        )
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(storage=opened, study_name=name)
        if study.user_attrs.get(JOB_KEY) is not None:
            _check_same_job(study, job_key, job_name, url)
        msg = f"storage {without_password(url)} already holds a study {name!r}"
        raise InputError(
            msg,
            "--resume continues it from its own run folder; start another one with another --run",
        ) from None


def _check_ours(study: Study, place: str) -> None:
    """Raises InputError for a study that no search of autotune's can be."""
    from optuna.study import StudyDirection

    if study.directions != [StudyDirection.MINIMIZE]:
        msg = f"{place} holds the study {study.study_name!r} that autotune did not make"
        raise InputError(msg, "name another run, or another --study")


def _check_same_job(study: Study, job_key: str, job_name: str, storage: str) -> None:
    """Raises InputError for the study of another job, with the names of both."""
    if study.user_attrs[JOB_KEY] == job_key:
        return
    found = study.user_attrs.get(JOB_NAME)
    whose = f" ({found!r})" if isinstance(found, str) and found else ""
    if whose and found == job_name:
        whose = f" (also called {found!r}, and asked otherwise)"
    ours = f", and this is {job_name!r}" if job_name and found != job_name else ""
    msg = (
        f"storage {without_password(storage)} holds the study {study.study_name!r} of another job"
        f"{whose}{ours}"
    )
    raise InputError(
        msg, "a study has the name of its run folder: name another one with --run (and no "
        "--resume), or tune the job that it was made for"
    )  # fmt: skip


def _agree(
    study: Study, job_key: str, job_name: str, storage: str | None,
    marks: Mapping[str, Any] = MappingProxyType({}),
) -> None:  # fmt: skip
    """A study belongs to one job. One that holds trials of somebody else's is not taken over.

    One without a job was begun by a process that was killed: it is begun again.
    """
    place = f"storage {without_password(storage or '')}"
    _check_ours(study, place)
    found = study.user_attrs.get(JOB_KEY)
    if found is not None:
        _check_same_job(study, job_key, job_name, storage or "")
        return
    if study.get_trials(deepcopy=False):
        msg = f"{place} holds the study {study.study_name!r} that autotune did not make"
        raise InputError(msg, "name another run, or leave --resume out")
    for mark, value in marks.items():
        study.set_user_attr(mark, value)
    if job_name:
        study.set_user_attr(JOB_NAME, job_name)
    study.set_user_attr(JOB_KEY, job_key)


def with_sampler_state(record: TrialRecord, study: Study, trial: Trial) -> TrialRecord:
    """The record with the counters that some samplers keep on a trial (nsga2's generation)."""
    attrs = study.get_trials(deepcopy=False)[trial.number].system_attrs
    state = {key: value for key, value in attrs.items() if isinstance(value, int)}
    return replace(record, sampler_state=state)


def of_a_peer(trial: FrozenTrial) -> bool:
    """Whether an unfinished trial is a worker's that is not known to have ended."""
    owner = Owner.of(trial.system_attrs.get(OWNER))
    return owner is not None and not owner.is_dead


def tell(study: Study, trial: Trial, record: TrialRecord) -> None:
    """Finish a trial of the study with what the record says."""
    from optuna.trial import TrialState

    for name, violation in record.constraints.items():
        trial.set_constraint(name, violation)
    for name, value in attributes_of(record).items():
        trial.set_user_attr(name, value)
    if record.value is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, record.value)


def finished_trial(record: TrialRecord, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    """A recorded trial in Optuna's terms. Raises InputError for one of another search space."""
    from optuna.trial import TrialState, create_trial

    known = set(record.params) == set(distributions)
    try:
        return create_trial(
            state=TrialState.COMPLETE if record.value is not None else TrialState.FAIL,
            value=record.value,
            params=record.params,
            distributions=distributions if known else {},
            user_attrs=attributes_of(record),
            system_attrs=dict(record.sampler_state),
            constraints=record.constraints,
        )
    except ValueError:
        raise other_space(record) from None
