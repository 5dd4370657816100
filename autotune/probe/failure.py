"""What is said of a probe that broke: the exception first, the end of its trace, the whole log."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from autotune.probe.outcomes import BROKEN, KEPT_CHARACTERS, LINE_CHARACTERS, TRACEBACK

if TYPE_CHECKING:
    from pathlib import Path

LOGS_FOLDER = "failed"  # of a run folder
MOST_LOG_BYTES = 256 * 1024  # the end of what a worker printed
MOST_LOGS = 50  # kept of one run
TRACE_LINES = 6
HINTS = {
    "unsupported": "`autotune doctor` names the packages that are missing here; --set KNOB=VALUE "
    "keeps a value that does not work out of the search",
    "cuda_error": "`autotune doctor` checks the device and its driver",
    "nccl_error": "`autotune doctor` checks the devices; --gpu NAME probes on one of them",
    "timeout": "shorter rows, a smaller model or --set micro_batch_size=1 make a probe shorter",
}
MISSING = re.compile(r"ModuleNotFoundError|ImportError|PackageNotFoundError")


def trace_end(text: str) -> list[str]:
    """The last lines of a trace, without the exception below them."""
    _, mark, after = text.rpartition(TRACEBACK)
    if not mark:
        return [
            line.rstrip()[:LINE_CHARACTERS] for line in text.strip().splitlines()[-TRACE_LINES:]
        ]
    frames = []
    for line in after.splitlines():
        if line.strip() and not line.startswith((" ", "\t")):
            break
        if line.strip(" ^~\t"):
            frames.append(line.rstrip()[:LINE_CHARACTERS])
    return frames[-TRACE_LINES:]


def explained(
    status: str, message: str, result: dict[str, Any], printed: str, log: Path | None
) -> str:
    """The message of a broken probe: why, where, and in which file all of it stands."""
    if status not in BROKEN:
        return message
    first, *more = message.strip().splitlines() or [status]
    trace = trace_end(str(result.get("trace") or printed)) if status != "bad_data" else []
    rest = [line for line in [*more, *trace] if line.strip() and line.strip() != first]
    said = "\n".join([first, *rest])[:KEPT_CHARACTERS]
    return f"{said}\nfull log: {log}" if log else said


def keep_log(
    folder: Path | None, key: str, status: str, result: dict[str, Any], printed: Path
) -> Path | None:
    """Copy the end of what a broken probe printed, and its trace; None where that is not kept."""
    if folder is None or status not in BROKEN or status == "bad_data":
        return None
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path, number = folder / f"{key[:12]}.log", 2
        while path.exists():
            path, number = folder / f"{key[:12]}-{number}.log", number + 1
        if sum(1 for _ in folder.iterdir()) >= MOST_LOGS:
            return None
        with path.open("wb") as log:
            trace = str(result.get("trace", ""))
            if trace:
                log.write(f"{result.get('message', '')}\n\n{trace}\n\n".encode())
            log.write(b"what it printed:\n" + _end_of(printed))
        return path
    return None


def _end_of(path: Path) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - MOST_LOG_BYTES, 0))
        return stream.read()
    return b""


def hint_for(status: str, message: str) -> str:
    """What a user can do about a probe that broke."""
    if MISSING.search(message):
        return HINTS["unsupported"]
    if status in HINTS:
        return HINTS[status]
    return (
        "the log has all that was printed; if neither the job nor this machine is at fault, it "
        "is a bug of autotune: report it with that file"
    )
