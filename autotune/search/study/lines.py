"""Optuna's journal as several processes write it: lines of a run folder's file, or of Redis.

A line that no Optuna writes, or only another one, is named by its number; Optuna itself judges it,
as it replays them. Redis is read without Optuna's snapshots: those are pickles, which run whatever
somebody put there.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.search.study.refusals import (
    NOTHING_LOST,
    REBUILT,
    StorageForgotError,
    told,
    without_password,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend

PREFIX = "autotune"  # of the keys in Redis
ANSWER_S = 30.0  # for Redis to answer
AT_ONCE = 1000  # entries that are asked for together
WRITTEN_ANEW = "end all workers; `autotune tune --resume` writes it anew from trials.jsonl"


def of_file(path: Path) -> JournalStorage:
    """The journal of a run folder, written by several processes of one machine.

    The lock is the system's, which goes with a killed holder. Raises InputError where a folder has
    no such locks, and for a damaged line.
    """
    from optuna.storages.journal import BaseJournalBackend

    place = f"{near(path)}, line"

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
                    found.append(_entry(f"{place} {number + 1}", line, WRITTEN_ANEW))
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
    return _checked(LockedJournal(), place, WRITTEN_ANEW)


def of_redis(url: str) -> JournalStorage:
    """The journal that a Redis server keeps for all studies. Raises InputError for a damaged one.

    Source of its keys: optuna 5.0, storages/journal/_redis.py `JournalRedisBackend`.
    """
    import redis
    from optuna.storages.journal import BaseJournalBackend, JournalRedisBackend

    patience = {"socket_timeout": ANSWER_S}
    if not url.startswith("unix://"):
        patience["socket_connect_timeout"] = ANSWER_S
    try:
        client = redis.Redis.from_url(url, **patience)
        client.ping()
    except (TypeError, ValueError) as error:  # what lies behind them, an empty list, says less
        raise type(error)(str(error)) from None
    whole = JournalRedisBackend(url, prefix=PREFIX)
    whole._redis = client  # noqa: SLF001 - its own waits without end
    place = f"{without_password(url)}, entry"
    mend = (
        f"end all workers, name an empty server or database (redis://HOST/1), and {REBUILT}; "
        f"{NOTHING_LOST}"
    )

    class LinesOfRedis(BaseJournalBackend):
        """The journal alone."""

        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            end = _count(client, without_password(url), mend)
            if end < log_number_from:
                raise StorageForgotError
            for start in range(log_number_from, end, AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, end))
                lines = client.mget([f"{PREFIX}:log:{number}" for number in numbers])
                for number, line in zip(numbers, lines, strict=True):
                    yield _entry(f"{place} {number}", line, mend)

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            whole.append_logs(logs)

    return _checked(LinesOfRedis(), place, mend)


def _count(client: Any, where: str, mend: str) -> int:  # noqa: ANN401 - redis without types
    """How many entries a server has."""
    try:
        last = client.get(f"{PREFIX}:log_number")
        return 0 if last is None else int(last) + 1
    except Exception as error:
        if not isinstance(error, ValueError) and "WRONGTYPE" not in str(error):
            raise
        msg = f"{where} does not say how long its journal is: {error}"
        raise InputError(msg, mend) from None


def _checked(backend: BaseJournalBackend, place: str, mend: str) -> JournalStorage:
    """The storage of a journal, which names the line that cannot be replayed."""
    from optuna.storages import JournalStorage

    first = 1 if place.endswith("line") else 0

    class CheckedJournal(JournalStorage):
        """As Optuna has it, line by line."""

        def _sync_with_backend(self) -> None:
            replay = self._replay_result
            for log in self._backend.read_logs(replay.log_number_read):
                at = f"{place} {replay.log_number_read + first}"
                try:
                    replay.apply_logs([log])
                except Exception as error:
                    if log.get("worker_id") == replay.worker_id:  # it answers our own call
                        raise
                    raise _unknown(at, log, error, mend) from None

    return CheckedJournal(backend)


def _entry(at: str, line: bytes | None, mend: str) -> dict[str, Any]:
    if line is None:
        msg = f"{at}, is gone: the server has dropped it"
        raise InputError(msg, f"`maxmemory-policy noeviction` keeps what was written; {mend}")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        msg = f"{at}, is not a line of an Optuna journal"
        raise InputError(msg, mend)
    return found


def _unknown(at: str, log: dict[str, Any], error: Exception, mend: str) -> InputError:
    import optuna
    from optuna.storages.journal._storage import JournalOperation

    code, known = log.get("op_code"), [int(each) for each in JournalOperation]
    if isinstance(code, int) and code not in known:
        msg = (
            f"{at}, is of another Optuna: it has the operation {code}, and Optuna "
            f"{optuna.__version__}, which is here, knows {min(known)} to {max(known)}"
        )
        return InputError(msg, f"install the Optuna here that its other workers have, or {mend}")
    return InputError(f"{at}, cannot be replayed by Optuna {optuna.__version__}: {told(error)}",
                      mend)  # fmt: skip


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
