"""Why a storage cannot be used, in words: away for a while, refused, another version, damaged."""

from __future__ import annotations

import re

from autotune.domain.errors import InputError
from autotune.domain.secrets import LEFT_OUT
from autotune.domain.units import format_seconds

OUTAGES = ("OperationalError", "InterfaceError", "ConnectionError", "BusyLoadingError",
           "TimeoutError", "ConnectionTimeout")  # fmt: skip
CLOSED_PORT = ("Connection refused", "No such file or directory")  # of a port, of a socket
COMING_UP = ("the database system is", "LOADING")  # PostgreSQL's cannot_connect_now; Redis
AWAY = (
    *COMING_UP, *CLOSED_PORT, "Connection reset", "timed out", "timeout expired",
    "Timeout", "No route to host", "Network is unreachable", "Temporary failure in name resolution",
    "closed the connection", "Connection closed by server",
    "too many clients", "connection slots", "max number of clients",
)  # fmt: skip
FULL = ("MISCONF", "READONLY", "OOM command")  # what Redis answers where it cannot write for now
HALF = {"ProgrammingError", "CommandError", "MultipleHeads", "HalfMadeError"}
RIGHTS = ("refuses this user", "grant that user the rights, or name another user")
CLOSED = ("is read-only", "name the primary server, or make it writable")
OPTION = ("invalid connection option", "bad value for", "could not convert string to float")
REDIS_OPTION = ("unexpected keyword argument", "in connection URL")  # above: psycopg's words
SAID = {"permission denied": RIGHTS, "NOPERM": RIGHTS, "read-only": CLOSED, "readonly": CLOSED}
KINDS = "postgresql+psycopg://USER@HOST/DATABASE, redis://HOST or sqlite:///study.db"
DRIVERS = {"psycopg": "pip install 'psycopg[binary]' (the database's driver)",
           "redis": "pip install redis (its driver)"}  # fmt: skip
OURS = "name one that comes with an extra of autotune: postgresql+psycopg://..."
QUERIED = re.compile(r"((?:password|passwd|sslpassword)=)[^&\s]*", re.IGNORECASE)  # libpq, Redis
NOTHING_LOST = "every finished trial is on the disk; nothing was lost"
AGAIN = "run the same command again (tune: with --resume)"
REBUILT = "`autotune tune --resume` builds the study again from trials.jsonl"


def of_a_new_run(hint: str | None) -> str | None:
    """A hint without what it says of trials that are kept: a new run has none."""
    for kept, instead in (
        (f"; {NOTHING_LOST}", ""), (f", where {REBUILT}", ""), (f", and {REBUILT}", ""),
        (AGAIN, "run the same command again"),
    ):  # fmt: skip
        hint = hint and hint.replace(kept, instead)
    return hint


class StorageForgotError(Exception):
    """A server has lost what was written to it."""


class HalfMadeError(Exception):
    """A database has some of Optuna's tables and columns, and not all."""


def without_password(url: str) -> str:
    """A storage's URL as it may be shown."""
    scheme, mark, rest = url.partition(":")
    behind = rest.lstrip("/")  # a mistyped URL has one stroke or three
    shown = f"{scheme}{mark}{rest[: len(rest) - len(behind)]}{behind.rpartition('@')[2]}"
    return QUERIED.sub(rf"\1{LEFT_OUT}", shown)


def all_words(error: BaseException) -> str:
    """What an error says, and every error behind it."""
    return " ".join(str(each) for each in _chain(error))


def is_outage(error: BaseException) -> bool:
    """Whether a server that is away, full, or just coming up is behind an error."""
    chain = _chain(error)
    if any(type(each).__module__.startswith("sqlite3") for each in chain):
        return "locked" in all_words(error)
    names = {type(each).__name__ for each in chain}
    if "redis" in _drivers(chain) and any(word in all_words(error) for word in FULL):
        return True
    invalid = any(getattr(each, "connection_invalidated", False) for each in chain)
    return "AuthenticationError" not in names and (invalid or bool(names & set(OUTAGES)))


def is_away(error: BaseException) -> bool:
    """Whether nobody answers now: what a wrong host, user or database answers is no outage."""
    words = all_words(error)
    return is_outage(error) and any(word in words for word in AWAY)


def is_of_driver(error: BaseException) -> bool:
    """Whether a database, and not a call of ours, is behind an error."""
    return bool(_drivers(_chain(error)) & {"sqlalchemy", "psycopg", "redis", "sqlite3", "alembic"})


def first_words(error: BaseException) -> str:
    """What the innermost error says, in a line."""
    texts = (str(each).strip() for each in reversed(_chain(error)))
    text = next((text for text in texts if text), "")
    return text.splitlines()[0] if text else type(error).__name__


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _drivers(chain: list[BaseException]) -> set[str]:
    return {type(each).__module__.partition(".")[0] for each in chain}


def refused(url: str, error: BaseException, waited_s: float = 0.0) -> InputError:
    """Why a storage cannot be used, and what to do. waited_s: for its answer."""
    chain = _chain(error)
    names = {type(each).__name__ for each in chain}
    place, first, words = without_password(url), first_words(error), all_words(error)
    absent = next((e.name or "" for e in chain if isinstance(e, ModuleNotFoundError)), "")
    if absent:
        how = DRIVERS.get(absent.partition(".")[0], f"{OURS}, or install the driver that it names")
        msg = f"storage {place} cannot be opened: its driver needs {absent}, which is not installed"
        return InputError(msg, f"{how}, or use sqlite:///study.db, which needs none")
    if "no longer compatible" in words:
        return _other_version(place, words)
    for said, (what, how) in SAID.items():
        if said in words:
            return InputError(f"storage {place} {what}: {first}", f"{how}; {NOTHING_LOST}")
    if (names & HALF or "no such " in words) and not any(said in words for said in OPTION):
        msg = f"storage {place} has tables that this version of Optuna cannot read: {first}"
        return InputError(
            msg, "a migration may have been interrupted: end all workers, then `optuna storage "
            f"upgrade --storage URL`, or name an empty database, where {REBUILT}; {NOTHING_LOST}"
        )  # fmt: skip
    if waited_s and is_away(error):
        msg = f"storage {place} has not answered for {format_seconds(waited_s)}: {first}"
        return InputError(
            msg, "start the server, or correct the host and the port in the URL (--storage, or "
            f"AUTOTUNE_STORAGE), then {AGAIN}; {NOTHING_LOST}"
        )  # fmt: skip
    return InputError(f"storage {place} cannot be opened: {first}", _mended(error))


def _mended(error: BaseException) -> str:
    """What to do where a storage cannot be opened."""
    if "unable to open database file" in all_words(error):
        return "create the folder of that file, or correct the path"
    if any(said in all_words(error) for said in OPTION):
        return _optioned("libpq's connection options, such as sslmode=require")
    if any(said in all_words(error) for said in REDIS_OPTION):
        return _optioned("redis-py's connection options, such as db=1")
    if is_away(error):
        return f"start the server, or correct the host and the port in the URL; {NOTHING_LOST}"
    if is_outage(error) or "redis" in _drivers(_chain(error)):
        hint = "correct the host, the user, the password or the database in the URL"
        return f"{hint} (--storage, or AUTOTUNE_STORAGE); {NOTHING_LOST}"
    return f"give an Optuna storage URL ({KINDS}), or leave --storage out"


def _optioned(whose: str) -> str:
    where = "in the URL (--storage, or AUTOTUNE_STORAGE)"
    return f"correct what stands behind ? {where}: {whose}; {NOTHING_LOST}"


def forgotten(where: str) -> InputError:
    """A server that was restarted without its data."""
    msg = f"the server at {without_password(where)} has lost the study"
    return InputError(
        msg, "it was restarted without keeping its data (Redis: --appendonly yes); "
        f"{NOTHING_LOST}: `autotune tune --resume` rebuilds the study"
    )  # fmt: skip


def unreadable(where: str, error: BaseException) -> InputError:
    """What a storage holds and nobody wrote so: damaged, deleted, or of another program."""
    msg = f"what {without_password(where)} holds of the study cannot be read: {told(error)}"
    return InputError(
        msg, "it was damaged, deleted or written by another program: end all workers, delete "
        f"it or name an empty storage, and {REBUILT}; {NOTHING_LOST}"
    )  # fmt: skip


def told(error: BaseException) -> str:
    """An error that has no words for a user: its kind and its value."""
    return f"{type(error).__name__}: {str(error)[:100]}"


def _other_version(place: str, words: str) -> InputError:
    import optuna

    by = words.partition("set up by optuna ")[2].partition(")")[0] or "another version"
    msg = f"storage {place} was set up by Optuna {by}, and here is {optuna.__version__}"
    if by == optuna.__version__:
        msg = f"storage {place} has tables of another form than Optuna {by} makes"
    older = "storage upgrade" in words
    hint = (
        "end all workers, keep a copy of the database, and run `optuna storage upgrade --storage "
        "URL` with the newest Optuna among them"
        if older
        else "install the newest Optuna here (pip install -U optuna), as its other workers have"
    )
    return InputError(msg, f"{hint}; {NOTHING_LOST}")
