"""Leading a search that workers share, and joining it: the study, the record, what both agree on.

Whoever leads holds the run folder and its `trials.jsonl`; each worker has a folder below it, or on
its own machine, with a record of the same form. The study is rebuilt from all of them; where it is
in a database, workers need no common disk.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import sweep
from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.frozen import dataclass
from autotune.search.study.backends import close
from autotune.search.study.journal import IDENTITY, JOB_KEY, JOB_NAME, claim
from autotune.search.study.owner import Owner
from autotune.search.study.record import WORKERS_FOLDER, TrialLog, records_of_workers
from autotune.search.study.storage import joined_study, shared_study
from autotune.search.study.turns import LEASE_S, SharedStudy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from optuna.study import Study

    from autotune.search.measured.shared import SharedSearch

    Made = Callable[[], list[dict[str, Any]]]

TERMS = "autotune:terms"  # of a study: what its workers must agree on, as the application says
BEGUN: dict[str, Any] = {}  # the terms of a study whose leader has not come that far
BEGIN_S, LOOK_S = 20.0, 0.5  # that a leader is given for it, and between looks


@dataclass(frozen=True, slots=True)
class Place:
    """Where a shared search is kept. storage None: the journal of its run folder."""

    run_dir: Path
    storage: str | None = None
    name: str = "autotune"
    job_key: str = ""
    lease_s: float = LEASE_S


@dataclass(frozen=True, slots=True)
class Opened:
    """A study whose storage is closed when it is done with."""

    study: Study

    def close(self) -> None:
        """Give its connections back."""
        close(self.study._storage)  # noqa: SLF001 - a study does not say where it is


@dataclass()
class Led:
    """A search as its leader has it: the study and the record that outlives it."""

    shared: SharedStudy
    log: TrialLog
    resumed: int = field(default=0)

    def gather(self) -> int:
        """Take over what workers have finished, by the study and by their records; how many."""
        before = len(self.log.records)
        self.log.gather()
        mine = {record.number for record in self.log.records}
        new = [record for record in self.shared.records() if record.number not in mine]
        if new:
            self.log.append(*new)
            self.log.records.sort(key=lambda record: record.number)
        return len(self.log.records) - before


@contextlib.contextmanager
def leading(
    search: SharedSearch, place: Place, terms: dict[str, Any], *, resume: bool, made: Made = list,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Led]:  # fmt: skip
    """Begin a search that others join, or go on with it. Raises InputError as `explore_measured`.

    terms: kept in the study for whoever joins. Raises InputError where it was begun under others.
    made: the probes of workers on this disk. tell: that a server is waited for.
    """
    with TrialLog(place.run_dir, search.header(place.job_key), resume=resume) as log:
        log.gather()
        for folder in place.run_dir.glob(f"{WORKERS_FOLDER}/*"):  # no later worker writes there
            sweep(folder)
        study = shared_study(
            run_dir=place.run_dir, storage=place.storage, name=place.name,
            job_key=place.job_key, resume=resume, tell=tell,
            marks={TERMS: BEGUN, JOB_NAME: search.bill.job.name},
        )  # fmt: skip
        _agree(study, search, terms)
        shared = SharedStudy(
            study, Owner.here(), lease_s=place.lease_s,
            known=lambda: records_of_workers(place.run_dir), made=made,
        )  # fmt: skip
        with contextlib.closing(Opened(study)), shared:
            shared.bury()
            shared.rebuild(log.records, search.distributions)
            study.set_user_attr(TERMS, terms)  # whoever reads them may begin
            led = Led(shared, log, len(log.records))
            led.gather()
            yield led


@contextlib.contextmanager
def joining(
    search: SharedSearch, study: Study, place: Place, owner: Owner, *, made: Made = list
) -> Iterator[tuple[SharedStudy, TrialLog]]:
    """Take part in a search. place: as the leader has it, or a run folder of this machine's own."""
    own = worker_folder(place.run_dir, owner.name)
    with TrialLog(own, search.header(place.job_key), resume=False) as log:
        shared = SharedStudy(
            study, owner, lease_s=place.lease_s,
            known=lambda: records_of_workers(place.run_dir), made=made,
        )  # fmt: skip
        found = study.user_attrs.get(IDENTITY)
        if found != search.priced.identity:
            msg = f"the study {study.study_name!r} is of another job or search space"
            raise InputError(
                msg, "join it with the job, the model and the data that it was started with"
            )
        with contextlib.closing(Opened(study)), shared:
            yield shared, log


def worker_folder(run_dir: Path, name: str) -> Path:
    """Where a worker keeps its records."""
    return run_dir / WORKERS_FOLDER / name


def terms_of(
    run_dir: Path | None, storage: str | None, name: str,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Study, dict[str, Any]]:  # fmt: skip
    """The study to join, and what its workers must agree on. Raises InputError.

    One that is just being begun is waited for, and a server that is away, which is told.
    """
    begun = time.monotonic()
    while True:
        study = joined_study(run_dir=run_dir, storage=storage, name=name, tell=tell)
        said = study.user_attrs
        terms = said.get(TERMS, BEGUN if JOB_KEY not in said else None)
        if terms != BEGUN or time.monotonic() - begun > BEGIN_S:
            break
        Opened(study).close()  # whoever begins it anew may write another journal
        time.sleep(LOOK_S)
    if isinstance(terms, dict) and terms != BEGUN:
        return study, terms
    place = near(run_dir) if run_dir else "the storage"
    if terms == BEGUN:
        msg = f"the study {name!r} of {place} has no terms yet: who began it may have been killed"
        raise InputError(msg, "run its `autotune tune` again with --resume, then join again")
    msg = f"the study {name!r} of {place} was started by a search that works alone"
    raise InputError(msg, "start one that can be joined: `autotune tune --score probe --workers 1`")


def _agree(study: Study, search: SharedSearch, terms: dict[str, Any]) -> None:
    claim(study, search.priced.identity)
    known = study.user_attrs.get(TERMS)
    version = known.get("version") if isinstance(known, dict) else None
    if version and version != terms.get("version"):
        msg = (
            f"the study {study.study_name!r} was started by autotune {version}, and "
            f"this is {terms.get('version')}"
        )
        raise InputError(
            msg, "use that version, or start anew (another --run, without --resume); every "
            "finished trial is on the disk"
        )  # fmt: skip
