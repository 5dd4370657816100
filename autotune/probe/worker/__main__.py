"""`python -m autotune.probe.worker REQUEST RESULT`, or `--serve` for one request after another.

Whatever happens that Python can still see ends in a result with a status; the parent names the
rest. Exit 0: a result was written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from .contract import KEPT_CHARACTERS, SCHEMA_VERSION
from .ranks import end_with_launcher

BEGUN_S = time.perf_counter()
PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "flash_attn")


def write_atomic(path: Path, content: dict[str, Any]) -> None:
    """The whole file or none of it. Raises ValueError for NaN and infinity."""
    text = json.dumps(content, allow_nan=False)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def status_of(error: BaseException, stage: str) -> str:  # noqa: PLR0911 - an outcome each
    """The named outcome of an exception. Anything not recognised is a crash."""
    import torch

    text = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "BadData":
        return "bad_data"
    if isinstance(error, torch.OutOfMemoryError):
        return "oom_device"
    host = isinstance(error, MemoryError) or "DefaultCPUAllocator" in text
    if host or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "oom_host"
    if "NCCL" in text or "gloo" in text.casefold() or type(error).__name__ == "DistBackendError":
        return "nccl_error"
    sticky = getattr(torch, "AcceleratorError", ())
    if (sticky and isinstance(error, sticky)) or "CUDA error" in text or "CUBLAS_STATUS" in text:
        return "cuda_error"
    named = type(error).__name__ == "Unsupported"
    missing = named or isinstance(error, (ImportError, NotImplementedError))
    compiler = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
    if missing or compiler or (stage == "build" and isinstance(error, (ValueError, KeyError))):
        return "unsupported"
    return "crash"


def versions() -> dict[str, str]:
    """Of what was measured."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def answer(request: dict[str, Any], begun_s: float) -> dict[str, Any]:
    """The result of a request."""
    from .ranks import several, working_folder
    from .run import Run, machine

    work = working_folder(request.get("work_dir"))
    run = Run(request, work, begun_s)
    try:
        found = {"status": "ok", **run.measure()}
    except Exception as error:  # noqa: BLE001 - any failure of foreign code is a result
        status = status_of(error, run.stage)
        found = {
            "status": status,
            "message": f"{type(error).__name__}: {error}"[:KEPT_CHARACTERS],
            "trace": traceback.format_exc()[-KEPT_CHARACTERS:],
            **run.result,
        }
        if status in {"oom_device", "oom_host"} and hasattr(run, "meter"):
            found["memory"] = run.meter.report() | {"at_failure": run.meter.read()}
    finally:
        if hasattr(run, "meter"):
            run.meter.uncount()
        if not several():  # else another rank may still read there; the parent removes it
            shutil.rmtree(work, ignore_errors=True)
    found |= {
        "schema_version": SCHEMA_VERSION, "key": request["key"], "stage": run.stage,
        "versions": versions(), "device": machine(run.device),
    }  # fmt: skip
    found["seconds"]["total"] = time.perf_counter() - begun_s
    return found


def answer_file(request_path: Path, result_path: Path, begun_s: float) -> None:
    """Answer one request file."""
    request = json.loads(request_path.read_text(encoding="utf-8"))
    found = answer(request, begun_s)
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or found["status"] != "ok":
        target = result_path if rank == 0 else result_path.with_suffix(f".rank{rank}.json")
        write_atomic(target, found)
    if found["status"] != "ok" and "RANK" in os.environ:
        sys.exit(1)  # the launcher ends the other ranks


def main() -> int:
    """Run as a program."""
    end_with_launcher()
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.argv[1:] == ["--serve"]:
        from .server import serve

        return serve(answer_file)
    answer_file(Path(sys.argv[1]), Path(sys.argv[2]), BEGUN_S)
    sys.stdout.flush()
    sys.stderr.flush()
    if "RANK" not in os.environ:  # else its group of processes is taken down in order
        os._exit(0)  # taking torch down takes half a second, and nothing of it is needed
    return 0


if __name__ == "__main__":
    sys.exit(main())
