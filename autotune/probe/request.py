"""What a probe is asked: job, offer and config as plain JSON that the worker understands.

Two requests that would measure the same thing have the same key: checkpoint interval and limit are
not in it, and accumulation is cut to what a measurement needs. The user's own knobs are, as
`environment` and `arguments`, which only a request that has some carries.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.catalog.models.models import local_folder
from autotune.cost.time.attention import leaves_cudnn
from autotune.domain.config import fsdp_settings
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.paths import whole
from autotune.domain.software import WITHOUT_CUDNN
from autotune.frozen import dataclass
from autotune.probe.worker.contract import SCHEMA_VERSION

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

MOST_ACCUMULATION = 4  # micro-steps measured per optimizer step; more add no information
SAMPLED_ROWS = 512  # synthetic rows, one from each of as many strata of the length distribution
SCAN_BYTES = 64_000_000  # of a data set that a worker reads to choose rows from
TOKENIZER, TOKENIZER_FILE = "tokenizer", "tokenizer.json"
# Parts of their own, and what ends a probe that would not become steady.
NO_KEY = (
    "key", "work_dir", "checkpoint_max_bytes", "loader_workers", "patience_s", "looks",
)  # fmt: skip
DEEPER_LAYERS = 8


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a probe may look.

    longest: steps at the longest rows, for memory: optimizer states appear in the first, so two.
    most: steps until steady; measured: steps after that; least: of them when `seconds` are over.
    patience_s: after which steps that never became steady are taken as they are. windows: looks at
    steps that others disturbed, at most; calm_s: waited for others, in all; window_s: the least
    that a window lasts.
    """

    longest: int = 2
    most: int = 60
    measured: int = 20
    least: int = 8
    seconds: float = 15.0
    patience_s: float = 60.0
    windows: int = 3
    calm_s: float = 15.0
    window_s: float = 1.0
    checkpoint_max_bytes: float = 8e9
    loader: bool = True
    evaluation: bool = True


def request_for(
    job: Job, offer: Offer, config: Config, *, effort: Effort | None = None,
    num_layers: int | None = None, memory_limit_bytes: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The request of a candidate; `num_layers` measures a shallower copy of the model."""
    effort = effort or Effort()
    knobs = config.as_dict()
    knobs.pop("checkpoint_every_steps")
    knobs.pop("save_total_limit")
    if config.kernels == "none":  # as earlier requests, which had no such knob
        knobs.pop("kernels")
    if config.offload == "none":
        knobs.pop("offload")
    full = job.global_batch_size // (config.micro_batch_size * offer.count)
    knobs["gradient_accumulation_steps"] = max(min(full, MOST_ACCUMULATION), 1)
    method = job.method
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": json.loads(job.model.hf_config),
        "num_layers": num_layers or job.model.num_layers,
        "method": {
            "kind": method.kind, "base": method.base, "rank": method.rank, "alpha": method.alpha,
            "dropout": method.dropout, "targets": list(method.targets),
            **({} if method.variant == "none" else {"variant": method.variant}),
            **({} if method.double_quant else {"double_quant": False}),
            **({"modules_to_save": list(method.modules_to_save)} if method.modules_to_save else {}),
        },
        **knobs,
        "device": "cpu" if offer.device.is_cpu else "cuda",
        "count": offer.count,
        "seed": 0,
        **_data(job, config),
        "evaluation": _evaluation(job, config) if effort.evaluation else None,
        "steps": {
            "longest": effort.longest, "most": effort.most, "measured": effort.measured,
            "least": effort.least, "seconds": effort.seconds,
        },
        "patience_s": effort.patience_s,
        "looks": {
            "windows": effort.windows, "calm_s": effort.calm_s, "window_s": effort.window_s,
        },
        "checkpoint_max_bytes": effort.checkpoint_max_bytes,
        "loader_workers": _worker_counts(offer, config) if effort.loader else [],
        "memory_limit_bytes": memory_limit_bytes,
    }  # fmt: skip
    if offer.network is not None:
        body |= {"nodes": offer.nodes, "network": offer.network.name}
    if config.sharding == "fsdp":
        body["fsdp_config"] = fsdp_settings(config, quantised=method.is_quantised)
    environment = dict(config.environment)
    if leaves_cudnn(job, offer.device, config):
        environment.setdefault(WITHOUT_CUDNN, 1)
    if environment:
        body["environment"] = environment
    if config.arguments:
        body["arguments"] = config.arguments
    return body | {"key": key_of(body)}


def key_of(body: dict[str, Any]) -> str:
    """A digest of everything that is measured."""
    kept = {name: value for name, value in body.items() if name not in NO_KEY}
    if kept.get("dataset"):  # what it holds, wherever it lies
        kept["dataset"] = {k: v for k, v in kept["dataset"].items() if k not in {"path", TOKENIZER}}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:24]


def two_depths(job: Job, period: int = 1) -> tuple[int, int] | None:
    """Two small depths, in whole periods of the layer pattern; None when the model is shallow.

    The error of a line grows with the distance to full depth over that between the depths, so the
    deeper one is a quarter of the model, within 4 and 8 layers.
    """
    low = -(-2 // period) * period
    high = max(min(job.model.num_layers // 4, DEEPER_LAYERS) // period * period, 2 * low)
    return (low, high) if job.model.num_layers > high else None


def sampled_lengths(job: Job) -> list[int]:
    """[tokens] one row from each stratum of the length distribution, in a fixed random order."""
    rng = np.random.default_rng(0)
    places = (rng.permutation(SAMPLED_ROWS) + rng.random(SAMPLED_ROWS)) / SAMPLED_ROWS
    grid = np.linspace(0.0, 1.0, len(job.lengths.quantiles))
    found = np.interp(places, grid, job.lengths.quantiles)
    return [max(round(float(n)), 1) for n in found]


def _data(job: Job, config: Config) -> dict[str, Any]:
    packed = config.packing == "on"
    full = [job.max_length] * SAMPLED_ROWS
    dataset = None if packed else _dataset(job)
    return {
        "max_length": job.max_length,
        "padding": "max_length" if packed else job.padding,
        "lengths": full if packed else ([] if dataset else sampled_lengths(job)),
        "longest": job.max_length if packed else job.lengths.maximum,
        "dataset": dataset,
    }


def _dataset(job: Job) -> dict[str, str] | None:
    """The rows themselves, where they are JSON lines and their tokenizer lies on this disk.

    None: rows of the counted lengths stand in for them.
    """
    if not job.dataset_path or job.column:
        return None
    path, name = whole(job.dataset_path), job.tokenizer
    if not path.exists():
        msg = f"the data set {path} is gone"
        raise InputError(msg, "probes read the job's own rows; put the file back")
    if name is None:
        name = str(local_folder(job.model, job.base_dir) or "")
    known = name == BYTES or (Path(name) / TOKENIZER_FILE).is_file() or Path(name).is_file()
    if not known or not _holds_json_lines(path):
        return None
    return {
        "path": str(path), TOKENIZER: name,
        "rows_digest": digest_of(path), "tokenizer_digest": digest_of(Path(name)),
    }  # fmt: skip


def _holds_json_lines(path: Path) -> bool:
    """Whether a data set is one file that begins with an object, as workers read it."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def digest_of(path: Path) -> str:
    """What a file holds: its size and its first bytes, as many as a worker reads of it.

    A folder stands for its tokenizer.json; a name that is no file for itself.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        stat = file.stat()
    except OSError:
        return path.name
    return _digest(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=16)
def _digest(file: Path, size: int, _changed_ns: int) -> str:
    found = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        left = SCAN_BYTES
        while left > 0 and (part := stream.read(min(left, 1 << 20))):
            found.update(part)
            left -= len(part)
    return found.hexdigest()[:16]


def _evaluation(job: Job, config: Config) -> dict[str, int] | None:
    if (plan := job.timed_evaluation) is None:
        return None
    return {"rows": plan.rows, "batch_size": plan.rows_at_once(config.micro_batch_size)}


def _worker_counts(offer: Offer, config: Config) -> list[int]:
    """The config's own count, and none: what a batch costs in one process."""
    most = max(offer.host.cores // offer.count, 1)
    return sorted({0, min(config.num_dataloader_workers, most)})
