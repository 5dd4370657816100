"""Opening a storage that several processes share: a database, Redis, or a run folder's journal.

What goes wrong is named (`refusals`): no driver, no server, another version, half a migration. What
an outage interrupts is tried again for a while; whoever measures has its records on its own disk.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.secrets import without_secrets
from autotune.domain.units import format_seconds
from autotune.search.study import lines
from autotune.search.study.refusals import (
    CLOSED_PORT,
    COMING_UP,
    QUERIED,
    HalfMadeError,
    StorageForgotError,
    all_words,
    first_words,
    forgotten,
    is_away,
    is_of_driver,
    is_outage,
    refused,
    unreadable,
    without_password,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optuna.storages import BaseStorage

PATIENCE_S = 600.0  # for a storage that was there and does not answer
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between tries; the last one stays
FIRST_TRIES = 5  # at opening: of several processes that make the tables at once, one is first
MADE_AT_ONCE = ("already exists", "duplicate key", "database is locked", "UNIQUE constraint")
START_UP_S = 60.0  # that a server which is just coming up is given, at opening
CLOSED_S = 15.0  # that a port where nothing listens is given, at opening
SLOW_S = 5.0  # for an answer, before that is said
ANSWER_S = 30  # for a server to take a connection; libpq counts whole seconds


def connect(
    url: str, patience_s: float = 0.0, tell: Callable[[str], None] = lambda _: None,
    closed_s: float | None = None,
) -> BaseStorage:  # fmt: skip
    """The storage behind a URL. Raises InputError for one that cannot be used, and why.

    patience_s: for a server that is away; that it is waited for is told once.
    closed_s: the same for a port where nothing listens, which may be the wrong one.
    """
    begun, left, number, is_told = time.monotonic(), FIRST_TRIES, 0, False
    while True:
        try:
            with _slowness_told(url, tell):
                storage = _opened(url)
            storage.get_all_studies()
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - every driver raises its own
            words, left = all_words(error), left - 1
            made = isinstance(error, HalfMadeError) or any(each in words for each in MADE_AT_ONCE)
            coming = START_UP_S if any(word in words for word in COMING_UP) else 0.0
            is_closed = closed_s is not None and any(word in words for word in CLOSED_PORT)
            given_s = closed_s if closed_s is not None and is_closed else patience_s
            most_s = max(given_s if is_away(error) else 0.0, coming)
            waited_s = time.monotonic() - begun
            if waited_s >= most_s and not (made and left > 0):
                raise refused(url, error, waited_s if most_s else 0.0) from None
            if most_s and not is_told:
                is_told = True
                tell(_away(url, error, most_s))
            time.sleep(PAUSES_S[min(number, len(PAUSES_S) - 1)])
            number += 1
        else:
            return patient(storage, url, tell)


@contextmanager
def _slowness_told(url: str, tell: Callable[[str], None]) -> Iterator[None]:
    """That a server keeps us waiting: one that never answers is given up after half a minute."""
    words = f"storage {without_password(url)} has not answered yet; waiting for it"
    timer = threading.Timer(SLOW_S, tell, (words,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _away(where: str, error: Exception, most_s: float) -> str:
    return (
        f"storage {without_password(where)} does not answer ({first_words(error)}); "
        f"waiting for it, {format_seconds(most_s)} at most"
    )


def url_to_type(url: str) -> str:
    """A storage's URL as a command can show it: one that holds a password is only called URL."""
    return "URL" if without_secrets(url)[1] or QUERIED.search(url) else url


def _opened(url: str) -> BaseStorage:
    from optuna.storages import RDBStorage, get_storage

    if url.startswith(("redis://", "rediss://", "unix://")):
        return lines.of_redis(url)
    whole, how = with_driver(url), _connecting(url)
    lacking = _lacking(whole, how)
    # one of another version is refused here as such, and gets no table of this one
    storage = RDBStorage(whole, engine_kwargs=how, skip_table_creation=bool(lacking))
    if lacking:
        close(storage)
        msg = f"it lacks {', '.join(lacking)}"
        raise HalfMadeError(msg)
    return get_storage(storage)


def _lacking(url: str, how: dict[str, Any]) -> list[str]:
    """Tables and columns that a database has not, where it has some of Optuna's."""
    import sqlalchemy
    from optuna.storages._rdb.models import BaseModel

    engine = sqlalchemy.create_engine(url, **how)
    try:
        there = {
            table: {column["name"] for column in columns}
            for (_, table), columns in sqlalchemy.inspect(engine).get_multi_columns().items()
        }
    finally:
        engine.dispose()
    wanted = BaseModel.metadata.tables
    if not wanted.keys() & there.keys():
        return []
    return [
        name if name not in there else f"{name}.{column.name}"
        for name, table in wanted.items()
        for column in ([next(iter(table.columns))] if name not in there else table.columns)
        if name not in there or column.name not in there[name]
    ]


def close(storage: BaseStorage) -> None:
    """Give back a database's connections; other storages hold none."""
    engine = getattr(getattr(storage, "_backend", storage), "engine", None)
    if engine is not None:
        storage.remove_session()
        engine.dispose()


def _connecting(url: str) -> dict[str, Any]:
    """Closed connections are noticed before they are used, and nobody waits without end for one."""
    if url.startswith("sqlite"):
        return {}
    known = "connect_timeout" in url or "PGCONNECT_TIMEOUT" in os.environ
    timed = with_driver(url).startswith("postgresql+psycopg") and not known
    limits = {"connect_args": {"connect_timeout": ANSWER_S}} if timed else {}
    return {"pool_pre_ping": True, **limits}


def with_driver(url: str) -> str:
    """PostgreSQL's URL with the driver of the extra, where it names none."""
    scheme, mark, rest = url.partition("://")
    return f"postgresql+psycopg{mark}{rest}" if scheme in {"postgresql", "postgres"} else url


@dataclass
class _Outage:
    """What was told of a storage that does not answer: that, and that it does again, each once."""

    where: str
    tell: Callable[[str], None]
    told: bool = False

    def waits(self, error: Exception, waited_s: float) -> None:
        """A call was tried again after so long; a hiccup is not worth a line."""
        if waited_s >= SLOW_S and not self.told:
            self.told = True
            self.tell(_away(self.where, error, PATIENCE_S))

    def answered(self) -> None:
        if self.told:
            self.told = False
            self.tell(f"storage {without_password(self.where)} answers again")


def patient(
    storage: BaseStorage, where: str, tell: Callable[[str], None] = lambda _: None
) -> BaseStorage:
    """The storage, whose every call waits out an outage. Raises InputError after `PATIENCE_S`.

    tell: what is said when an outage takes longer, and when it is over.
    """
    from optuna.storages import BaseStorage

    outage = _Outage(where, tell)
    for name in vars(BaseStorage):
        call = getattr(storage, name, None)
        if not name.startswith("_") and callable(call):
            setattr(storage, name, _patiently(name, call, outage))
    return storage


def _patiently(name: str, call: Callable[..., Any], outage: _Outage) -> Callable[..., Any]:
    @wraps(call)
    def tried(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the storage has
        begun, number, where = time.monotonic(), 0, outage.where
        while True:
            try:
                answer = call(*arguments, **named)
            except InputError:
                raise
            except StorageForgotError:
                raise forgotten(where) from None
            except Exception as error:
                waited_s = time.monotonic() - begun
                if not is_outage(error) or waited_s > PATIENCE_S:
                    refusal = _named(name, error, where, waited_s)
                    if refusal is None:
                        raise
                    raise refusal from None
                outage.waits(error, waited_s)
            else:
                outage.answered()
                return answer
            time.sleep(PAUSES_S[min(number, len(PAUSES_S) - 1)])
            number += 1

    return tried


def _named(name: str, error: Exception, where: str, waited_s: float) -> InputError | None:
    """What a call's error is said to be; None for an answer of Optuna's, or a fault of ours."""
    if _is_an_answer(name, error):
        return None
    if is_of_driver(error):
        return refused(where, error, waited_s)
    return unreadable(where, error) if _is_unreadable(name, error) else None


def _is_an_answer(name: str, error: Exception) -> bool:
    """Whether Optuna so answers what was asked: a trial that has ended, a study that is there."""
    from optuna.exceptions import OptunaError, StorageInternalError

    asked = name in {"get_study_id_from_name", "get_trial_id_from_study_id_trial_number"}
    told = isinstance(error, OptunaError) and not isinstance(error, StorageInternalError)
    return told or (asked and isinstance(error, KeyError)) or name == "get_best_trial"


def _is_unreadable(name: str, error: Exception) -> bool:
    """Whether what is stored, and no value of the caller's, is behind an error."""
    return isinstance(error, KeyError) or name.startswith("get_")
