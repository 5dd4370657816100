"""How a probe can end, how the end of a process is read, and which settings do not run here.

The worker names what Python sees. The parent names the rest from exit codes, the kernel's counts
and the last words on stderr, and checks that a result is what it claims to be. Of a broken
one the exception is said first, then the end of its trace, and which file holds all of it.

A setting that is no argument of the installed Trainer, or out of reach, is not probed; a value
breaks when it failed twice for the same reason and never worked: a sampler must not learn "slow"
from "broken", nor spend a minute on the same breakage again.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular
from autotune.domain.config import ARGUMENT
from autotune.domain.errors import unknown
from autotune.domain.secrets import without_secrets
from autotune.domain.units import DAY_S, is_number
from autotune.frozen import dataclass
from autotune.probe.worker.contract import KEPT_CHARACTERS, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


OK = "ok"
# Out-of-memory classes: of the device, of the host, an allocator that gives memory back in steady
# steps, memory that spills over to the host.
INFEASIBLE = frozenset({"oom_device", "oom_host", "thrash", "spill"})
BROKEN = frozenset(
    {"cuda_error", "nccl_error", "unsupported", "timeout", "crash", "invalid_result", "bad_data"}
)
INTERRUPTED = "interrupted"
NO_ROOM = "the disk is full"  # how the message of a probe begins that was ended for that
MAKE_ROOM = "make room there, then type the same command again (tune: with --resume)"
OUTCOMES = frozenset({OK, INTERRUPTED}) | INFEASIBLE | BROKEN
RETRIED = frozenset({"cuda_error", "nccl_error", "crash", "invalid_result"})

THRASH_SHARE = 0.1  # of steps in which the allocator had to give memory back
SPILL_RATIO = 3.0  # times the prediction, on a device that is full
SHORTEST_S, LONGEST_S, MOST_BYTES = 1e-6, 31 * DAY_S, 1e15  # of a believable step
MAX_RESULT_BYTES = 10_000_000
LINE_CHARACTERS = 300
TRACEBACK = "Traceback (most recent call last):"
ALLOCATION_FAILED = (
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker process ended; `_failure_class` reads its class, out of memory among them."""

    code: int | None  # None: still running when its time was over
    stderr: str
    oom_kills: int = 0  # of the cgroup, while it ran
    device_was_full: bool = False
    interrupted: bool = False
    rank_failures: tuple[dict[str, Any], ...] = ()
    ended_for: str = ""  # why the parent ended it before its time was over


def root_cause(failures: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of several ranks' failures the one that came first: a lost connection follows from another.

    A rank that stayed behind is told by its own broken collective, so what is not about
    communication is the cause.
    """
    own = [found for found in failures if found.get("status") != "nccl_error"]
    return next(iter(own or failures), None)


def read_result(path: Path, key: str) -> dict[str, Any] | str:
    """The worker's result, or why what lies there is none."""
    try:
        text = read_regular(path, MAX_RESULT_BYTES).decode()
        content = json.loads(text, parse_constant=_not_finite)
    except FileNotFoundError:
        return "the worker left no result"
    except (OSError, ValueError, RecursionError) as error:
        return f"the result cannot be read: {error}"
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        return "the result is not a probe's"
    if content.get("key") != key:
        return f"the result answers another request ({str(content.get('key'))[:40]!r})"
    if str(content.get("status")) not in OUTCOMES:
        return f"the result has the unknown status {str(content.get('status'))[:40]!r}"
    return _implausible(content) or without_secrets_in(content)


def _not_finite(name: str) -> float:
    msg = f"{name} is no number"
    raise ValueError(msg)


def _implausible(content: dict[str, Any]) -> str | None:
    if content["status"] != OK:
        return None
    step, memory = content.get("step"), content.get("memory")
    if not isinstance(step, dict) or not isinstance(memory, dict):
        return "the result lacks step or memory"
    needed = [(step, n) for n in ("step_s", "micro_s", "optimizer_s", "accumulation", "tokens")]
    needed += [(memory, n) for n in ("allocated_bytes", "reserved_bytes", "driver_bytes")]
    for part, name in needed:
        value = part.get(name)
        if not is_number(value) or not 0 <= value < 1e300:  # noqa: PLR2004
            return f"{name} is {str(value)[:40]!r}, not a number of at least 0"
    return _out_of_range(step, memory)


def _out_of_range(step: dict[str, Any], memory: dict[str, Any]) -> str | None:
    """Why figures are no machine's: shorter than a launch, longer than a month, more than any RAM.

    Assumption: no kernel is launched in under a microsecond, no host has a petabyte.
    """
    if step["step_s"] < SHORTEST_S:
        return f"a step of {step['step_s']:g} s: no machine makes one in less than {SHORTEST_S:g} s"
    longest = max(("step_s", "micro_s", "optimizer_s"), key=lambda name: step[name])
    if step[longest] > LONGEST_S:
        return f"{longest} is {step[longest]:g} s, which is more than a month"
    most = max(("allocated_bytes", "reserved_bytes", "driver_bytes"), key=lambda name: memory[name])
    if memory[most] > MOST_BYTES:
        return f"{most} is {memory[most]:g}, which is more than a petabyte"
    return None


def judged(result: dict[str, Any], predicted_step_s: float | None) -> tuple[str, str]:
    """Status and message of a readable result: what ran may still be thrashing or spilling."""
    if result["status"] != OK:
        return str(result["status"]), str(result.get("message", ""))[:KEPT_CHARACTERS]
    step, memory = result["step"], result["memory"]
    retries = float(step.get("retries", 0))
    if retries >= 2 and retries >= THRASH_SHARE * float(step.get("steps", 1)):  # noqa: PLR2004 - one may be chance
        return "thrash", f"the allocator gave memory back {retries:.0f} times in steady steps"
    slow = predicted_step_s is not None and step["step_s"] > SPILL_RATIO * predicted_step_s
    if memory.get("near_full") and slow and result.get("device", {}).get("kind") == "cuda":
        return "spill", "the device is full and steps are far slower than predicted"
    return OK, ""


def unexplained(ending: Ending, why: str) -> tuple[str, str]:  # noqa: PLR0911 - an ending each
    """Status and message of a process that left no readable result."""
    text = ending.stderr
    said = exception_of(text)
    if ending.interrupted:
        return INTERRUPTED, "stopped by the user"
    failure = root_cause(ending.rank_failures)
    if failure is not None:
        return str(failure["status"]), str(failure.get("message", ""))[:KEPT_CHARACTERS]
    if ending.ended_for:
        status = INTERRUPTED if ending.ended_for.startswith(NO_ROOM) else "crash"
        return status, ending.ended_for
    if ending.code is None:
        return "timeout", "no result within its time"
    found = _failure_class(text, device_was_full=ending.device_was_full)
    if found:
        return found, said
    if ending.code == -int(signal.SIGKILL):
        if ending.oom_kills > 0:
            return "oom_host", "the kernel ended it: the host had no memory left"
        return "crash", "killed by signal 9"
    if ending.code < 0:
        name = signal.Signals(-ending.code).name if -ending.code in set(signal.Signals) else "?"
        return "crash", f"ended by signal {-ending.code} ({name})" + (f": {said}" if said else "")
    if ending.code != 0:
        return "crash", f"{said or 'it said nothing'} (exit code {ending.code})"
    return "invalid_result", why


def exception_of(text: str) -> str:
    """The line of a program's last words that says why it ended; empty where there is none."""
    _, mark, after = text.rpartition(TRACEBACK)
    lines = [line.rstrip() for line in after.splitlines() if line.strip()]
    if not mark:
        fatal = [line for line in lines if line.startswith(("Fatal Python error", "terminate "))]
        return (fatal or lines[-1:] or [""])[0].strip()[:LINE_CHARACTERS]
    own = (line for line in lines if not line.startswith((" ", "\t")))
    return next(own, lines[-1] if lines else "")[:LINE_CHARACTERS]


def _failure_class(text: str, *, device_was_full: bool) -> str | None:
    """The class of a failure by what was printed: out of memory (device, host), NCCL, CUDA."""
    if "OutOfMemoryError" in text or "CUDA out of memory" in text:
        return "oom_device"
    if "DefaultCPUAllocator: can't allocate memory" in text or "MemoryError" in text:
        return "oom_host"
    if any(word in text for word in ALLOCATION_FAILED):
        return "oom_device" if device_was_full else "cuda_error"
    if "NCCL error" in text or "ncclInternalError" in text or "ncclUnhandled" in text:
        return "nccl_error"
    if "CUDA error" in text or "device-side assert" in text:
        return "cuda_error"
    return None


LOGS_FOLDER = "failed"  # of a run folder
MOST_LOG_BYTES = 256 * 1024  # the end of what a worker printed
MOST_LOGS = 50  # kept of one run
STDERR_TAIL = 20_000  # bytes of it that are judged
WORDS = ("message", "trace")  # of a result
TRACE_LINES = 6
HINTS = {
    "unsupported": "`autotune doctor` names the packages that are missing here; --set KNOB=VALUE "
    "keeps a value that does not work out of the search",
    "cuda_error": "`autotune doctor` checks the device and its driver",
    "nccl_error": "`autotune doctor` checks the devices; --gpu NAME probes on one of them",
    "timeout": "shorter rows, a smaller model or --set micro_batch_size=1 make a probe shorter",
}
MISSING = re.compile(r"ModuleNotFoundError|ImportError|PackageNotFoundError")
NO_COMPILER = re.compile(r"No working C\+\+ compiler|Failed to find C compiler")  # Inductor, Triton
GET_COMPILER = (
    "torch.compile needs a C++ compiler here: install one (Debian: apt-get install g++), or name "
    "yours in CXX and CC; --set compile=off does without"
)


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
        trace = str(result.get("trace", ""))
        first = f"{result.get('message', '')}\n\n{trace}\n\n" if trace else ""
        text, _ = without_secrets(f"{first}what it printed:\n{_end_of(printed)}")
        path.write_text(text, encoding="utf-8")
        return path
    return None


def _end_of(path: Path, most_bytes: int = MOST_LOG_BYTES) -> str:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - most_bytes, 0))
        text = stream.read().decode(errors="replace")
        _, newline, behind = text.partition("\n") if size > most_bytes else ("", "", "")
        return behind if newline else text  # half a line may be half a token
    return ""


def tail(path: Path) -> str:
    """The end of what a worker printed, without secrets; empty where it cannot be read."""
    return without_secrets(_end_of(path, STDERR_TAIL))[0]


def without_secrets_in(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose words say no secrets: those of an exception may hold an address or a token."""
    said = {name: without_secrets(str(result[name]))[0] for name in WORDS if result.get(name)}
    return {**result, **said}


def hint_for(status: str, message: str) -> str:
    """What a user can do about a probe that broke."""
    if message.startswith(NO_ROOM):
        return MAKE_ROOM
    if NO_COMPILER.search(message):
        return GET_COMPILER
    if MISSING.search(message):
        return HINTS["unsupported"]
    if status in HINTS:
        return HINTS[status]
    return (
        "the log has all that was printed; if neither the job nor this machine is at fault, it "
        "is a bug of autotune: report it with that file"
    )


ARGUMENTS_FILE, ARGUMENTS_CLASS = "training_args.py", "TrainingArguments"


def trainer_arguments() -> tuple[str, ...]:
    """Fields of the installed TrainingArguments; none where transformers is not as expected.

    From its source: importing it takes seconds.
    """
    found = find_spec("transformers")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / ARGUMENTS_FILE
        if path.is_file():
            return _fields(path.read_text(encoding="utf-8"))
    return ()


def _fields(source: str) -> tuple[str, ...]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == ARGUMENTS_CLASS:
            return tuple(
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
    return ()


def check_arguments(extra: Iterable[str]) -> None:
    """Raise InputError for an extra knob that is an argument which no TrainingArguments has."""
    asked = [name.removeprefix(ARGUMENT) for name in extra if name.startswith(ARGUMENT)]
    known = trainer_arguments() if asked else ()
    for name in asked:
        if known and name not in known:
            kind = "argument of TrainingArguments"
            hint = "extra takes those of the installed transformers, by their exact names"
            raise unknown(kind, name, known, hint)
