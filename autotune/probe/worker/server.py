"""A process that has imported everything once, and forks one for each request.

A fork begins where importing ended: no tensor was made, no device was touched, no thread pool was
filled. What a configuration allocates, sets or breaks ends with its own process, as if that had
been started anew; only the seconds of importing are saved. Linux only.

Does not cover: environment variables that must be there before the first import.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.probe.guard import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, end_all_below

from .contract import PRINTED_FILE, RESULT_FILE, TOUCHED, tell_ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORK_SAFE = "PYTORCH_NVML_BASED_CUDA_CHECK"  # asks the driver's library: CUDA stays untouched


def serve(answer: Callable[[Path, Path, float], Any]) -> int:
    """Folders from stdin, one a line: the request in each is answered by a fork."""
    own = os.environ.get(FORK_SAFE)
    os.environ.setdefault(FORK_SAFE, "1")
    _import_all()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        folder = Path(json.loads(line))
        request = folder / "request.json"
        with contextlib.suppress(Exception):  # what is not there is the fork's to say
            _import_model(json.loads(request.read_text(encoding="utf-8"))["model"])
        gc.collect()
        gc.freeze()
        _note_files()
        if _touched_device():
            return TOUCHED
        server = os.getpid()
        child = os.fork()
        if child == 0:
            if own is None:
                del os.environ[FORK_SAFE]
            _become(answer, folder, server)
        _, status = os.waitpid(child, 0)
        end_all_below()
        tell_ending(folder, os.waitstatus_to_exitcode(status))
    return 0


@contextlib.contextmanager
def _capability_by_driver_library() -> Iterator[None]:
    """Let imports ask what a board can do without beginning CUDA in this process.

    bitsandbytes chooses its library so when it is imported, and peft imports it.
    Source: bitsandbytes 0.50 cuda_specs.py get_compute_capabilities.
    """
    import torch

    try:
        known = capabilities()
    except Exception:  # noqa: BLE001 - no driver's library, or one that refuses: as it was
        known = []
    own = torch.cuda.get_device_capability
    if known:
        torch.cuda.get_device_capability = lambda _=None: known[-1]  # the least of all boards
    try:
        yield
    finally:
        torch.cuda.get_device_capability = own


def capabilities() -> list[tuple[int, int]]:
    """Compute capabilities of the visible boards, the highest first. Raises what the library does.

    Source: nvml.h: nvmlDeviceGetCudaComputeCapability. Boards are visible by UUID: `runner`.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        handles = [pynvml.nvmlDeviceGetHandleByUUID(n) for n in names if n.startswith("GPU-")]
        found = [pynvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    return sorted(((int(major), int(minor)) for major, minor in found), reverse=True)


def _touched_device() -> bool:
    """Whether an import has begun CUDA in this process: no fork of it could use the device."""
    import torch

    return torch.cuda.is_initialized()


def _import_all() -> None:
    with _capability_by_driver_library():
        from . import run  # noqa: F401 - torch and the Trainer
        from .memory import note_before, resident_bytes

        note_before(resident=resident_bytes())
        with contextlib.suppress(ImportError):
            import peft  # noqa: F401 - most jobs train adapters


def _note_files() -> None:
    from .memory import note_before, resident_bytes

    note_before(of_files=resident_bytes("RssFile"))


def _import_model(fields: dict[str, Any]) -> None:
    """The code of a family of models."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = type(AutoConfig.for_model(fields["model_type"]))
    AutoModelForCausalLM._model_mapping[config]  # noqa: SLF001 - looking it up imports it


def _become(answer: Callable[[Path, Path, float], Any], folder: Path, server: int) -> None:
    """The fork: its own session, folder and output, as a process of its own has. Never returns."""
    begun_s, code = time.perf_counter(), 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != server:  # it died before the kernel was told
            os._exit(code)
        os.setsid()
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        printed = os.open(PRINTED_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for target, source in ((0, nothing), (1, printed), (2, printed)):
            os.dup2(source, target)
        answer(folder / "request.json", folder / RESULT_FILE, begun_s)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
