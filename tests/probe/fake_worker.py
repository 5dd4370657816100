"""A worker that misbehaves on purpose: `fake_worker.py MODE REQUEST RESULT`. Free of torch.

With --serve in the place of REQUEST and RESULT it stays and forks for each folder that it is told.
MODE:13 goes wrong with the request whose micro_batch_size is 13 alone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def good(request: dict[str, Any]) -> dict[str, Any]:
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return {
        "schema_version": 1, "key": request["key"], "status": "ok", "stage": "done",
        "versions": {}, "warnings": [], "seconds": {"total": 1.0},
        "device": {"kind": "cpu", "name": "cpu", "threads": threads},
        "step": {"step_s": 0.5, "micro_s": 0.4, "optimizer_s": 0.05, "data_s": 0.02, "steps": 26,
                 "accumulation": request["gradient_accumulation_steps"], "tokens": 512.0,
                 "relative_error": 0.01, "retries": 0},
        "memory": {"allocated_bytes": 1e9, "reserved_bytes": 1.1e9, "driver_bytes": 1.5e9,
                   "context_bytes": 4e8, "total_bytes": 2e10, "near_full": False},
        "checkpoint": {"save_s": 0.2, "bytes": 1000},
        "evaluation": {"batch_s": 0.1, "rows": 8, "tokens": 800},
        "loader": [{"workers": 0, "batch_s": 0.001, "start_s": 0.0, "batches": 3}],
    }  # fmt: skip


def machine(result: dict[str, Any], request: dict[str, Any]) -> None:
    """A device on which larger micro-batches are better until they no longer fit."""
    micro = request["micro_batch_size"]
    if request["attention"] == "eager":
        sys.exit("RuntimeError: this kernel is broken here")
    if micro >= 8:
        result |= {"status": "oom_device", "message": "torch.OutOfMemoryError: 8 GiB"}
        result["memory"] |= {"driver_bytes": 2.1e10}
    each = 0.1 + 0.02 * micro
    accumulation = request["gradient_accumulation_steps"]
    result["step"] |= {
        "step_s": accumulation * each + 0.05, "micro_s": accumulation * each, "data_s": 0.0
    }  # fmt: skip


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def serve(mode: str) -> None:
    """One fork for each folder that is named on stdin."""
    if mode == "touched":
        sys.stdin.readline()
        sys.exit(3)  # its imports began CUDA
    if mode == "will-not-serve":
        sys.exit("this worker answers one request and no more")
    for line in sys.stdin:
        folder = Path(json.loads(line))
        child = os.fork()
        if child == 0:
            forked(mode, folder)
        _, status = os.waitpid(child, 0)
        write(folder / "ending.new", os.waitstatus_to_exitcode(status))
        (folder / "ending.new").replace(folder / "ending.json")


def forked(mode: str, folder: Path) -> None:
    code = 1
    try:
        os.chdir(folder)
        printed = os.open("stderr", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        sys.argv[1:] = [mode, str(folder / "request.json"), str(folder / "result.json")]
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        os.write(2, f"{error.code}\n".encode())
    finally:
        os._exit(code)


def of_rank(mode: str, rank: int, result_path: Path, result: dict[str, Any]) -> None:
    """What one of two processes does."""
    own = result_path.with_suffix(f".rank{rank}.json")
    failed = {**result, "status": "unsupported", "message": "ImportError: flash_attn on rank 1"}
    if mode == "rank-fails" and rank == 1:
        write(own, failed)
        sys.exit(1)
    if mode == "rank-fails":
        time.sleep(600)
    if mode == "rank-fails-late":
        write(own if rank else result_path, failed if rank else result)
        sys.exit(rank)
    if mode == "connection-lost":
        lost = {**result, "status": "nccl_error", "message": "Connection closed by peer"}
        write(own if rank else result_path, failed if rank else lost)
        sys.exit(1)
    if mode.startswith("ranks-hang:"):
        Path(mode.split(":")[1]).with_suffix(f".{rank}").write_text(str(os.getpid()))
        time.sleep(600)
    if rank == 0:
        write(result_path, result)


def tell_and_sleep(mode: str, result_path: Path, result: dict[str, Any]) -> None:
    if mode.startswith("ok"):
        write(result_path, result)
    Path(mode.split(":")[1]).write_text(str(os.getpid()))
    time.sleep(600)


def the_first_time(mode: str, flag: Path) -> None:
    """Fail, or tell who serves it and sleep; all is fine the second time."""
    if flag.exists():
        return
    if mode.startswith("once-and-tell:"):
        write(flag, os.getppid())
        time.sleep(600)
    flag.write_text("failed once")
    sys.exit("something went wrong once")


def main() -> None:
    if sys.argv[2] == "--serve":
        serve(sys.argv[1])
        return
    mode, request_path, result_path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    request = json.loads(request_path.read_text(encoding="utf-8"))
    result = good(request) | {"pid": os.getpid(), "parent": os.getppid()}
    if mode.endswith(":13"):
        mode = mode.removesuffix(":13") if request["micro_batch_size"] == 13 else "good"
    if "RANK" in os.environ:
        of_rank(mode, int(os.environ["RANK"]), result_path, result)
        return
    if mode.startswith("once"):
        the_first_time(mode, Path(mode.split(":")[1]))
    elif mode.startswith(("sleep-and-tell:", "ok-and-sleep:")):
        tell_and_sleep(mode, result_path, result)
    elif mode.startswith("grandchildren:"):
        code = "import time; time.sleep(600)"
        children = [
            subprocess.Popen([sys.executable, "-c", code]),
            subprocess.Popen([sys.executable, "-c", code], start_new_session=True),
        ]
        Path(mode.split(":")[1]).write_text(" ".join(str(child.pid) for child in children))
    elif mode == "machine":
        machine(result, request)
    elif mode in ENDINGS:
        ENDINGS[mode]()
    elif mode in RESULTS:
        RESULTS[mode](result_path, result)
        return
    write(result_path, result)


def flood() -> None:
    while True:
        os.write(1, b"x" * 65536)


def full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def phases() -> None:
    write(Path(sys.argv[2]).with_name("phase.json"), ["measuring", 3, 26])
    time.sleep(3.0)


ENDINGS = {
    "phases": phases,
    "exit": lambda: sys.exit("an unexpected end"),
    "exit-silently": lambda: os._exit(0),
    "abort": os.abort,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(600),
    "full-disk": full_disk,
    "flood": flood,
    "cuda-text": lambda: sys.exit("RuntimeError: CUDA error: an illegal memory access"),
    "cublas-text": lambda: sys.exit("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    "cuda-oom-text": lambda: sys.exit("torch.OutOfMemoryError: CUDA out of memory."),
    "host-oom-text": lambda: sys.exit("DefaultCPUAllocator: can't allocate memory"),
    "nccl-text": lambda: sys.exit("NCCL error in: ProcessGroupNCCL.cpp"),
    "harmless-text": lambda: sys.stderr.write("an error that is only a warning\n"),
}


def _changed(**parts: Any) -> Any:
    def apply(path: Path, result: dict[str, Any]) -> None:
        for name, value in parts.items():
            outer, _, inner = name.partition("__")
            if inner:
                result[outer][inner] = value
            else:
                result[outer] = value
        write(path, result)

    return apply


RESULTS: dict[str, Any] = {
    "good": write,
    "garbage": lambda path, _: path.write_bytes(b"\x00\xff{not json"),
    "nan": _changed(step__step_s=float("nan")),
    "negative": _changed(memory__driver_bytes=-1),
    "word": _changed(step__step_s="fast"),
    "other-key": _changed(key="another"),
    "other-status": _changed(status="splendid"),
    "list": lambda path, _: write(path, [1, 2]),
    "oom": _changed(status="oom_device", message="torch.OutOfMemoryError"),
    "unsupported": _changed(status="unsupported", message="ImportError: flash_attn"),
    "bad-data": _changed(status="bad_data", message="rows.jsonl line 7 is not JSON"),
    "thrash": _changed(step__retries=13),
    "busy-window": _changed(
        step__window={
            "cores": 2.0,
            "own": 0.4,
            "others": 1.6,
            "waited": 0.7,
            "spread": 0.75,
            "drift": 0.0,
            "stalled": 0.0,
            "fast": 0.3,
            "steady": True,
            "device": "cpu",
            "slowdown": 4.0,
        }
    ),
    "oom-narrow": _changed(
        status="oom_device",
        message="CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total capacity of "
        "18.63 GiB of which 512.00 MiB is free.",
    ),
    "no-gpu": _changed(status="unsupported", message="Unsupported: no CUDA device can be used"),
    "spill": _changed(memory__near_full=True, device={"kind": "cuda", "name": "x"}),
}

if __name__ == "__main__":
    main()
