"""Probes one after another in this process: importing takes longer than most of them.

What the product's own probes are spared, each run meets what the one before left behind: it is
taken away as far as torch and accelerate allow. What changes a process for good (fused kernels,
torch.compile, tf32, variables of the environment, a limit on memory) is not run so.
"""

from __future__ import annotations

import gc
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from autotune.probe.device import fingerprint
from autotune.probe.record import ProbeRecord

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.probe.device import LocalDevice


def stays_apart(request: dict[str, Any]) -> bool:
    """Whether this probe would change the process for those after it."""
    return bool(
        request.get("kernels", "none") != "none"
        or request["compile"] != "off"
        or request["precision"] == "tf32"
        or request.get("environment")
        or request.get("memory_limit_bytes")
    )


def run_inside(local: LocalDevice, request: dict[str, Any], config: Config) -> ProbeRecord:
    """The record of one probe made in this process."""
    from autotune.probe.worker.__main__ import answer

    begun = time.perf_counter()
    with TemporaryDirectory(prefix="autotune-suite-") as folder:
        result = answer({**request, "work_dir": str(Path(folder))}, begun)
    record = ProbeRecord(
        key=request["key"], status=result["status"], message=str(result.get("message", "")),
        wall_s=time.perf_counter() - begun, config=config.as_record(), device=local.name,
        fingerprint=fingerprint(local), request=request, result=result,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        disturbed=list((result.get("step") or {}).get("disturbed", ())),
    )  # fmt: skip
    clean()
    return record


def clean() -> None:
    """Give back what the last run held."""
    import torch
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 - as its own tests do
    gc.collect()
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - held by no tensor
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
