"""Opening a storage that several processes share: a database, Redis, or a run folder's journal.

What goes wrong is named: no driver, no server, another version, half a migration. What an outage
interrupts is tried again for a while; whoever measures has its records on its own disk meanwhile.
Redis is read without Optuna's snapshots: those are pickles, which run whatever somebody put there.
"""

from __future__ import annotations

import json
import os
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.domain.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalBackend

PATIENCE_S = 600.0  # for a storage that was there and does not answer
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between tries; the last one stays
FIRST_TRIES = 5  # at opening: of several processes that make the tables at once, one is first
MADE_AT_ONCE = ("already exists", "duplicate key", "database is locked", "UNIQUE constraint")
START_UP_S = 60.0  # that a server which is just coming up is given, at opening
COMING_UP = ("the database system is", "LOADING")  # PostgreSQL's cannot_connect_now; Redis
OUTAGES = ("OperationalError", "InterfaceError", "ConnectionError", "BusyLoadingError",
           "TimeoutError")  # fmt: skip
KINDS = "postgresql+psycopg://USER@HOST/DATABASE, redis://HOST or sqlite:///study.db"
DRIVERS = {"psycopg": "pip install 'psycopg[binary]' (the database's driver)",
           "redis": "pip install redis (its driver)"}  # fmt: skip
NOTHING_LOST = "every finished trial is on the disk; nothing was lost"


class StorageForgotError(Exception):
    """A server has lost what was written to it."""


def connect(url: str) -> BaseStorage:
    """The storage behind a URL. Raises InputError for one that cannot be used, and why."""
    begun, left = time.monotonic(), FIRST_TRIES
    while True:
        try:
            storage = _opened(url)
            storage.get_all_studies()
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - every driver raises its own
            words, left = _all_words(error), left - 1
            at_once = left > 0 and any(each in words for each in MADE_AT_ONCE)
            early = time.monotonic() - begun < START_UP_S and any(w in words for w in COMING_UP)
            if not (at_once or early):
                raise refused(url, error) from None
            time.sleep(PAUSES_S[-max(left, 1)])
        else:
            return patient(storage, url)


def url_to_type(url: str) -> str:
    """A storage's URL as a command can show it: one that holds a password is only called URL."""
    return "URL" if without_secrets(url)[1] else url


def _opened(url: str) -> BaseStorage:
    from optuna.storages import JournalStorage, RDBStorage, get_storage

    if url.startswith(("redis://", "rediss://", "unix://")):
        return JournalStorage(_redis(url))
    return get_storage(RDBStorage(with_driver(url), engine_kwargs=_pooled(url)))


def close(storage: BaseStorage) -> None:
    """Give back a database's connections; other storages hold none."""
    engine = getattr(getattr(storage, "_backend", storage), "engine", None)
    if engine is not None:
        storage.remove_session()
        engine.dispose()


def _pooled(url: str) -> dict[str, Any]:
    """Connections that a restarted server has closed are noticed before they are used."""
    return {} if url.startswith("sqlite") else {"pool_pre_ping": True}


def with_driver(url: str) -> str:
    """PostgreSQL's URL with the driver of the extra, where it names none."""
    scheme, mark, rest = url.partition("://")
    return f"postgresql+psycopg{mark}{rest}" if scheme in {"postgresql", "postgres"} else url


def _redis(url: str) -> BaseJournalBackend:
    import redis
    from optuna.storages.journal import BaseJournalBackend, JournalRedisBackend

    whole = JournalRedisBackend(url, prefix="autotune")
    redis.Redis.from_url(url).ping()

    class LinesOfRedis(BaseJournalBackend):
        """The journal alone."""

        def __init__(self) -> None:
            self._read = 0

        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            found = list(whole.read_logs(log_number_from))
            if not found and log_number_from:
                self._check_kept(log_number_from)
            return found

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            whole.append_logs(logs)

        def _check_kept(self, known: int) -> None:
            last = redis.Redis.from_url(url).get("autotune:log_number")
            if last is None or int(last) + 1 < known:
                raise StorageForgotError

    return LinesOfRedis()


def shared_journal(path: Path) -> BaseStorage:
    """The journal of a run folder, written by several processes of one machine.

    The lock is the system's, which goes with a killed holder. Raises InputError where a folder has
    no such locks.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend

    class LockedJournal(BaseJournalBackend):
        """Lines of a file; half a line is of a writer that was killed, and never counted."""

        def __init__(self) -> None:
            self._offsets = [0]

        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            start = min(log_number_from, len(self._offsets) - 1)
            with path.open("rb") as file:
                file.seek(self._offsets[start])
                content = file.read()
            found, at = [], self._offsets[start]
            for number, line in enumerate(content.splitlines(keepends=True), start=start):
                if not line.endswith(b"\n"):
                    break
                at += len(line)
                if number + 1 == len(self._offsets):
                    self._offsets.append(at)
                if number >= log_number_from:
                    found.append(_entry(path, number + 1, line))
            return found

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            import fcntl

            lines = b"".join(json.dumps(log).encode() + b"\n" for log in logs)
            with path.open("rb+") as file:
                _locked(fcntl.flock, file.fileno(), fcntl.LOCK_EX, path)
                end = _whole_end(file.fileno())
                try:
                    file.seek(end)
                    file.write(lines)
                    file.flush()
                except OSError:
                    os.ftruncate(file.fileno(), end)
                    raise

    path.touch()
    return patient(JournalStorage(LockedJournal()), near(path))


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        msg = f"{near(path)}, line {number}, is no line of an Optuna journal"
        raise InputError(
            msg, "end all workers; `autotune tune --resume` writes it anew from trials.jsonl"
        ) from None
    return found


def _locked(flock: Callable[[int, int], None], handle: int, how: int, path: Path) -> None:
    try:
        flock(handle, how)
    except OSError as error:
        msg = f"the folder of {near(path)} has no locks of files: {error.strerror or error}"
        raise InputError(
            msg, "share the search through --storage postgresql+psycopg://..., or put the run "
            "folder on a disk of this machine"
        ) from None  # fmt: skip


def _whole_end(handle: int) -> int:
    """Where the last whole line ends; what a killed writer left behind it is cut off."""
    end = os.fstat(handle).st_size
    block = 1 << 16
    at = end
    while at > 0:
        start = max(at - block, 0)
        found = os.pread(handle, at - start, start).rfind(b"\n")
        if found >= 0:
            whole = start + found + 1
            if whole < end:
                os.ftruncate(handle, whole)
            return whole
        at = start
    os.ftruncate(handle, 0)
    return 0


def patient(storage: BaseStorage, where: str) -> BaseStorage:
    """The storage, whose every call waits out an outage. Raises InputError after `PATIENCE_S`."""
    from optuna.storages import BaseStorage

    for name in vars(BaseStorage):
        call = getattr(storage, name, None)
        if not name.startswith("_") and callable(call):
            setattr(storage, name, _patiently(call, where))
    return storage


def _patiently(call: Callable[..., Any], where: str) -> Callable[..., Any]:
    @wraps(call)
    def tried(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the storage has
        begun, number = time.monotonic(), 0
        while True:
            try:
                return call(*arguments, **named)
            except StorageForgotError:
                msg = f"the server at {without_password(where)} has lost the study"
                raise InputError(
                    msg, "it was restarted without keeping its data (Redis: --appendonly yes); "
                    f"{NOTHING_LOST}: `autotune tune --resume` rebuilds the study"
                ) from None  # fmt: skip
            except Exception as error:
                if not is_outage(error):
                    raise
                if time.monotonic() - begun > PATIENCE_S:
                    raise refused(where, error) from None
            time.sleep(PAUSES_S[min(number, len(PAUSES_S) - 1)])
            number += 1

    return tried


def is_outage(error: BaseException) -> bool:
    """Whether a server that is away, or is just coming up, is behind an error."""
    chain = _chain(error)
    if any(type(each).__module__.startswith("sqlite3") for each in chain):
        return "locked" in _all_words(error)
    names = {type(each).__name__ for each in chain}
    invalid = any(getattr(each, "connection_invalidated", False) for each in chain)
    return "AuthenticationError" not in names and (invalid or bool(names & set(OUTAGES)))


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _all_words(error: BaseException) -> str:
    return " ".join(str(each) for each in _chain(error))


def refused(url: str, error: BaseException) -> InputError:
    """Why a storage cannot be used, and what to do."""
    chain = _chain(error)
    names = {type(each).__name__ for each in chain}
    place = without_password(url)
    text = next((str(each).strip() for each in reversed(chain) if str(each).strip()), "")
    first = text.splitlines()[0] if text else type(error).__name__
    absent = next((e.name or "" for e in chain if isinstance(e, ModuleNotFoundError)), "")
    if absent:
        how = DRIVERS.get(absent.partition(".")[0], "install the database's driver")
        msg = f"storage {place} cannot be opened: its driver needs {absent}, which is not installed"
        return InputError(msg, f"{how}, or take sqlite:///study.db, which needs none")
    if "no longer compatible" in _all_words(error):
        return _other_version(place, _all_words(error))
    if names & {"ProgrammingError", "CommandError", "MultipleHeads"} or "no such " in text:
        msg = f"storage {place} has tables that this version of Optuna cannot read: {first}"
        return InputError(
            msg, "a migration may have been interrupted: end all workers, then `optuna storage "
            f"upgrade --storage URL`, or name an empty database; {NOTHING_LOST}"
        )  # fmt: skip
    msg = f"storage {place} cannot be opened: {first}"
    if "unable to open database file" in text:
        return InputError(msg, "make the folder that its file is to be in, or mend the path")
    if is_outage(error):
        hint = "start the server, or mend the host, the user and the database in the URL"
        return InputError(msg, f"{hint}; {NOTHING_LOST}")
    return InputError(msg, f"give an Optuna storage URL ({KINDS}), or leave --storage out")


def _other_version(place: str, words: str) -> InputError:
    import optuna

    by = words.partition("set up by optuna ")[2].partition(")")[0] or "another version"
    msg = f"storage {place} was set up by Optuna {by}, and here is {optuna.__version__}"
    older = "storage upgrade" in words
    hint = (
        "end all workers, keep a copy of the database, and run `optuna storage upgrade --storage "
        "URL` with the newest Optuna among them"
        if older
        else "install the newest Optuna here (pip install -U optuna), as its other workers have"
    )
    return InputError(msg, f"{hint}; {NOTHING_LOST}")


def without_password(url: str) -> str:
    """A storage's URL as it may be shown."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
