"""A fault at every file operation of a command, then the command again: is anything lost?

    python -m bench.faults [--quick] [--format text|json]

Each command runs once undisturbed. Then, for each of its file operations and each kind of fault, a
child that is forked from this process runs it in a fresh folder with the fault at that operation:
`kill` (SIGKILL before it), `torn` (half of a write, then SIGKILL), `ENOSPC` and `EIO` (refused).
Then the command runs again, undisturbed, and what it leaves is held against the first run.

Operations are counted below Python's own files: opening for writing, writing, syncing, truncating,
renaming, linking, removing, making folders. The probes of `tune --score probe` are those of the
tests' fake worker, which is a real process that computes nothing.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import argparse
import builtins
import errno
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import load_job
from autotune.catalog.files import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
JOB = str(ROOT / "jobs" / "rtx4090_qwen2_05b.yaml")
TINY = str(ROOT / "jobs" / "tiny_cpu.yaml")
FAKE = ROOT / "tests" / "probe" / "fake_worker.py"
FAULTS = ("kill", "torn", "ENOSPC", "EIO")
BY_PATH = ("mkdir", "rmdir", "unlink", "rename", "replace", "link")
BY_HANDLE = ("write", "fsync", "ftruncate", "fchmod")
LIMIT_S = 120.0
QUICK = 3  # points of each command and fault
LOADED = (
    "autotune.cli.tune", "autotune.cli.verify", "autotune.cli.lists",
    "autotune.app.tune.tune", "autotune.app.probing.tune", "autotune.search.study.study",
    "autotune.search.study.storage", "autotune.app.verify.verify",
    "autotune.report.page.page", "autotune.app.refresh_prices", "autotune.evidence.calibrate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, what comes before it, and what is run again after a fault."""

    name: str
    run: Callable[[], int]
    again: Callable[[], int]
    before: Callable[[], int] = lambda: 0


def _cli(*words: str) -> int:
    from autotune.cli.application import run

    return run([*words, "--quiet"] if words[0] in {"tune", "verify"} else words)


def _tune(*more: str) -> int:
    return _cli("tune", JOB, "--fidelity", "formula", "--trials", "5", "--run", "run", *more)


def _again(resumed: int, afresh: Callable[[], int]) -> int:
    """Begin where there was nothing to resume."""
    return afresh() if resumed == 2 else resumed  # noqa: PLR2004 - bad input: no run yet


def _probed(*, resume: bool) -> int:
    from autotune.app.probing.plan import ProbeOptions
    from autotune.app.tune.tune import Options, tune
    from autotune.domain.errors import AutotuneError

    locks = {"precision": "fp32", "compile": "off", "attention": "sdpa"}
    probing = ProbeOptions(probes=2, worker=(str(FAKE), "machine"))
    options = Options(score="probe", run_dir=Path("run").absolute(), probing=probing, resume=resume)
    try:
        tune(load_job(TINY, set_values=locks), options)
    except AutotuneError as error:
        return error.exit_code
    return 0


def _verify() -> int:
    lines = [f"{step},1.5" for step in range(1, 101)]
    Path("steps.csv").write_text("\n".join(["step,step_time_s", *lines]) + "\n", encoding="utf-8")
    return _cli("verify", "run", "steps.csv")


def _prices() -> int:
    from types import ModuleType, SimpleNamespace

    library: Any = ModuleType("gpuhunt")
    library.query = lambda **_: [
        SimpleNamespace(
            gpu_name="H100", gpu_count=1, gpu_memory=80.0, price=2.5, spot=False,
            instance_name="gpu_1x_h100_sxm5", location="us-east-1", flags=[],
        )
    ]  # fmt: skip
    sys.modules["gpuhunt"] = library
    os.environ.pop("AUTOTUNE_OFFLINE", None)
    return _cli("prices", "refresh")


COMMANDS = (
    Command("tune", _tune, lambda: _again(_tune("--resume"), _tune)),
    Command(
        "tune --score probe",
        lambda: _probed(resume=False),
        lambda: _again(_probed(resume=True), lambda: _probed(resume=False)),
    ),
    Command("verify", _verify, _verify, before=_tune),
    Command("prices refresh", _prices, _prices),
)


class Injected:
    """Counts the file operations below a folder, and fails at one of them."""

    def __init__(self, root: Path, at: int, fault: str, told: int) -> None:
        """told: a handle that every operation's name is written to."""
        self.root, self.at, self.fault, self.told, self.count = str(root), at, fault, told, 0
        self.real = {name: getattr(os, name) for name in (*BY_PATH, *BY_HANDLE, "open")}

    def install(self) -> None:
        """From here on."""
        for name in BY_PATH:
            setattr(os, name, self._wrapped(name, str))
        for name in BY_HANDLE:
            setattr(os, name, self._wrapped(name, _path_of))
        real_open, plain = self._wrapped("open", str), io.open

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:  # noqa: ANN401
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            call = real_open if writes else self.real["open"]
            return int(call(path, flags, *rest, **named))

        def file(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:  # noqa: ANN401
            mine = set(mode) & set("wax+")
            return (_pyio.open if mine else plain)(path, mode, *rest, **named)

        setattr(os, "open", opened)  # noqa: B010 - typed otherwise
        setattr(builtins, "open", file)  # noqa: B010
        setattr(io, "open", file)  # noqa: B010

    def _wrapped(self, name: str, place: Callable[[Any], str]) -> Callable[..., Any]:
        real = self.real[name]

        def call(first: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401
            where = str(Path(place(first)).absolute()) if named.get("dir_fd") is None else self.root
            if not where.startswith(self.root):
                return real(first, *rest, **named)
            self.count += 1
            self.real["write"](self.told, b".")
            if self.count == self.at:
                self._fail(name, first, rest)
            return real(first, *rest, **named)

        return call

    def _fail(self, name: str, first: Any, rest: tuple[Any, ...]) -> None:  # noqa: ANN401
        if self.fault in {"kill", "torn"}:
            if self.fault == "torn" and name == "write":
                self.real["write"](first, bytes(rest[0])[: len(rest[0]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, self.fault)
        raise OSError(number, os.strerror(number), str(first))


def _path_of(handle: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    except OSError:
        return ""


def _in_child(
    folder: Path, work: Callable[[], int], at: int = 0, fault: str = ""
) -> tuple[int, int]:
    """A forked child: its exit code (-9: killed, -1: it hung), and its file operations."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            os.chdir(folder)
            quiet = os.open(folder.parent / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            os.environ["AUTOTUNE_HOME"] = str(folder / "home")
            os.environ["AUTOTUNE_RUNS"] = str(folder / "runs")
            Injected(folder, at, fault, write).install()
            code = work()
        finally:
            os._exit(code)
    os.close(write)
    status, until = None, time.monotonic() + LIMIT_S
    with os.fdopen(read, "rb") as told:
        os.set_blocking(told.fileno(), False)
        count = 0
        while status is None and time.monotonic() < until:
            count += len(told.read() or b"")
            done, code = os.waitpid(pid, os.WNOHANG)
            status = code if done else None
            time.sleep(0.002)
        count += len(told.read() or b"")
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -1, count
    return os.waitstatus_to_exitcode(status), count


def _left(folder: Path) -> dict[str, Any]:
    """What a command leaves: names and, of answers and evidence, what they say."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or (path.name == ".lock" and name.startswith("home")):
            continue
        found[name] = _said(path)
    return found


def _said(path: Path) -> Any:  # noqa: ANN401 - JSON
    if path.name == "recommendation.json":
        best = json.loads(path.read_text(encoding="utf-8"))["best"]
        return best and (best["config"], best["device"])
    if path.suffix == ".json":
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    if path.suffix == ".jsonl":
        keys = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return len(keys)
    return True


def _judged(clean: dict[str, Any], folder: Path, code: int) -> str:
    """What is wrong after the second run; empty for nothing."""
    if code not in {0, 3, 4}:
        return "stuck"
    try:
        left = _left(folder)
    except (ValueError, KeyError, TypeError):
        return "corrupt"
    if any(clean[name] != left.get(name) for name in clean):
        return "lost"
    more = set(left) - set(clean) - {"run/failure.json"}
    return "left behind" if any(SCRATCH in n or ".lock" in n or "probe-" in n for n in more) else ""


def tried(command: Command, work: Path, most: int | None) -> dict[str, Any]:
    """The command's row: operations, points tried, and what was wrong after how many of them."""
    clean = work / "clean"
    clean.mkdir(parents=True)
    _in_child(clean, command.before)
    code, operations = _in_child(clean, command.run)
    if code not in {0, 3, 4}:
        said = (work / "said").read_text(encoding="utf-8")[-400:]
        msg = f"{command.name} fails undisturbed, with exit code {code}: {said}"
        raise RuntimeError(msg)
    expected, wrong, points = _left(clean), Counter[str](), 0
    examples: list[str] = []
    step = max(1, operations // most) if most else 1
    for fault in FAULTS:
        for at in range(1, operations + 1, step):
            folder = work / "one"
            folder.mkdir()
            _in_child(folder, command.before)
            _in_child(folder, command.run, at, fault)
            again, _ = _in_child(folder, command.again)
            what = _judged(expected, folder, again)
            points += 1
            if what:
                wrong[what] += 1
                examples.append(f"{fault} at operation {at}: {what}")
            shutil.rmtree(folder)
    kinds = ("lost", "stuck", "corrupt", "left behind")
    return {
        "command": command.name, "operations": operations, "points": points,
        **{kind: wrong[kind] for kind in kinds}, "examples": examples[:5],
    }  # fmt: skip


def measured(names: list[str] | None = None, most: int | None = None) -> list[dict[str, Any]]:
    """A row for each command. most: points of each fault; None: every operation."""
    chosen = [c for c in COMMANDS if not names or c.name in names]
    for name in LOADED:  # once, before any fork
        import_module(name)
    load_job(JOB)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        return [tried(c, Path(name).resolve() / str(n), most) for n, c in enumerate(chosen)]


def main() -> None:
    """Print the table; exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a few points of each")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--command", action="append", help="only this one; repeatable")
    asked = parser.parse_args()
    rows = measured(asked.command, QUICK if asked.quick else None)
    if asked.format == "json":
        print(json.dumps({"schema_version": 1, "rows": rows}, indent=1))
    else:
        print(f"{'command':20} {'operations':>10} {'points':>7} lost stuck corrupt left behind")
        for row in rows:
            print(
                f"{row['command']:20} {row['operations']:10} {row['points']:7} {row['lost']:4} "
                f"{row['stuck']:5} {row['corrupt']:7} {row['left behind']:11}"
            )
            print("".join(f"  {text}\n" for text in row["examples"]), end="")
    wrong = any(row[k] for row in rows for k in ("lost", "stuck", "corrupt", "left behind"))
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
