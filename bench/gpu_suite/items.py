"""What is worth a GPU's time: runs by worth, each a job of its own with one configuration.

An item says only what differs from the plain run: rows of one length, one micro-step, sdpa, bf16,
nothing recomputed, torch's fused AdamW.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import jobs_of_line
from autotune.domain.config import Config
from autotune.domain.typed.overrides import Overrides
from autotune.probe.request import Effort, key_of, request_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.job import Job

TINY = str(Path(__file__).resolve().parents[2] / "jobs" / "data" / "tiny_model")
EFFORT = Effort(most=30, measured=8, least=5, seconds=2.5, patience_s=12.0, windows=1, calm_s=0.0,
                checkpoint_max_bytes=0.0, loader=False, evaluation=False)  # fmt: skip
SAVED = replace(EFFORT, checkpoint_max_bytes=12e9, loader=True)
COMPILED = replace(EFFORT, patience_s=120.0)
LONG = replace(EFFORT, measured=300, least=300, most=320, seconds=60.0, patience_s=60.0, windows=1)
DRY = replace(EFFORT, most=8, measured=4, least=2, seconds=0.5, patience_s=2.0)
EFFORTS = {"plain": EFFORT, "saved": SAVED, "compiled": COMPILED, "long": LONG}
RAGGED = {"data.lengths.p50": 220, "data.lengths.p95": 700, "data.lengths.max": 1024}
GIB = 2**30
SMALL, ONE, LARGE = "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B"
FULL, NONE = {"activation_checkpointing": "full"}, {}  # type: dict[str, Any], dict[str, Any]
EXPANDABLE = (("env.PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)


@dataclass(frozen=True, slots=True)
class Item:
    """One run: its name, which nothing else has, and what differs from the plain one.

    rows: micro-batch x length in tokens. job: further keys of the job. knobs: of the configuration.
    depth: layers, where not all of the model's. limit_gib: of memory, where not the whole device's.
    """

    name: str
    model: str
    method: str
    rows: tuple[int, int]
    knobs: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    accumulation: int = 1
    depth: int | None = None
    effort: str = "plain"
    limit_gib: float | None = None
    needs: str = ""  # a library that the run is nothing without

    @property
    def group(self) -> str:
        """The item's class: the first word of its name."""
        return self.name.partition("/")[0]

    @property
    def ragged(self) -> bool:
        """Whether its rows differ in length."""
        return "data.lengths.p50" in self.job

    def config(self, *, on_cpu: bool = False) -> Config:
        """The configuration."""
        plain = Config(
            self.rows[0], self.accumulation, 1000, "fp32" if on_cpu else "bf16",
            pin_memory=not on_cpu,
        )  # fmt: skip
        return plain.with_knobs(**{**self.knobs, **({"precision": "fp32"} if on_cpu else {})})

    def of(self, gpu: str, *, dry: bool = False, versions: Mapping[str, str] | None = None) -> Job:
        """The job on one such device; dry: of a tiny model on short rows; versions: of software."""
        micro, length = self.rows
        stated: dict[str, Any] = {
            "model": TINY if dry else self.model,
            "method.kind": "lora" if dry and self.method == "qlora" else self.method,
            "data.rows": 4096, "data.max_length": 64 if dry else length, "train.epochs": 1,
            "train.global_batch_size": micro * self.accumulation,
            "software.cudnn_attention": "true",  # as torch chooses
            **({} if dry else self.job),
            **{f"software.{name}": version for name, version in (versions or {}).items()},
        }  # fmt: skip
        job = jobs_of_line(Overrides(gpus=(gpu,), price="free", stated=stated))[0].job
        return replace(job, method=replace(job.method, base="32bit")) if dry else job

    def request(self, gpu: str, *, dry: bool = False) -> dict[str, Any]:
        """What the worker is asked."""
        job, effort = self.of(gpu, dry=dry), DRY if dry else EFFORTS[self.effort]
        limit = int(self.limit_gib * GIB) if self.limit_gib and not dry else None
        offer, depth = job.offers[0], None if dry else self.depth
        request = request_for(job, offer, self.config(on_cpu=offer.device.is_cpu), effort=effort,
                              num_layers=depth, memory_limit_bytes=limit)  # fmt: skip
        return request | {"key": key_of(request)}


def every() -> tuple[Item, ...]:
    """All of them, the most valuable first."""
    return (*_first(), *_lora(), *_small(), *_others(), *_kinds(), *_levers(), *_long(), *_last())


def _first() -> tuple[Item, ...]:
    """Whether anything runs, and what no room looks like."""
    return (
        Item("smoke/small", SMALL, "full", (4, 1024), effort="saved"),
        Item("smoke/lora", LARGE, "lora", (2, 1024), effort="saved"),
        Item("room/full-8b", LARGE, "full", (8, 4096)),
    )


def _lora() -> tuple[Item, ...]:
    """An 8B model with adapters, on 16 and on 4 bits; in full as far as it goes."""
    job_d = {**RAGGED, "method.rank": 64, "method.alpha": 128, "method.dropout": 0.05}
    return (
        Item("lora/1x1024", LARGE, "lora", (1, 1024)),
        Item("lora/4x1024", LARGE, "lora", (4, 1024)),
        Item("lora/4x1024/kept", LARGE, "lora", (4, 1024), FULL),
        Item("qlora/2x1024", LARGE, "qlora", (2, 1024)),
        Item("qlora/4x1024/kept", LARGE, "qlora", (4, 1024), FULL),
        Item("lora/d/4", LARGE, "lora", (4, 1024), FULL, job_d),
        Item("lora/d/4/none", LARGE, "lora", (4, 1024), {}, job_d),
        Item("lora/1x8192/kept", LARGE, "lora", (1, 8192), FULL),
        Item("full/8b/1x1024/kept", LARGE, "full", (1, 1024), FULL),
        Item("qlora/1x512", LARGE, "qlora", (1, 512)),
        Item("lora/1x512", LARGE, "lora", (1, 512)),
        Item("lora/2x1024/eager", LARGE, "lora", (2, 1024), {"attention": "eager"}),
        Item("lora/2x1024/acc4", LARGE, "lora", (2, 1024), accumulation=4),
    )


def _small() -> tuple[Item, ...]:
    """Full fine-tuning of small models: micro-batch, recomputation, attention, dtype."""
    return (
        Item("full/1x1024", SMALL, "full", (1, 1024)),
        Item("full/8x1024", SMALL, "full", (8, 1024)),
        Item("full/16x1024", SMALL, "full", (16, 1024)),
        Item("full/16x1024/kept", SMALL, "full", (16, 1024), FULL),
        Item("full/4x1024/eager", SMALL, "full", (4, 1024), {"attention": "eager"}),
        Item("full/4x1024/32bit", SMALL, "full", (4, 1024), {}, {"method.base": "32bit"}),
        Item("full/8x1024/ragged", SMALL, "full", (8, 1024), {}, RAGGED),
        Item("full/4x1024/loop", SMALL, "full", (4, 1024), {"optimizer": "adamw_torch"}),
        Item("full/4x1024/8bit", SMALL, "full", (4, 1024), {"optimizer": "adamw_bnb_8bit"},
             needs="bitsandbytes"),
        Item("full/1b/4x1024", ONE, "full", (4, 1024)),
        Item("full/1b/8x2048/kept", ONE, "full", (8, 2048), FULL),
        Item("full/2x512", SMALL, "full", (2, 512)),
        Item("full/4x1024/acc4", SMALL, "full", (4, 1024), accumulation=4),
    )  # fmt: skip


def _levers() -> tuple[Item, ...]:
    """What people switch on to save: Liger's kernels, torch.compile, tf32."""
    liger = {"kernels": "liger"}
    return (
        Item("liger/full/8x1024", SMALL, "full", (8, 1024), liger, needs="liger_kernel"),
        Item("liger/lora/4x1024", LARGE, "lora", (4, 1024), liger, needs="liger_kernel"),
        Item("liger/1b/2x16384/kept", ONE, "lora", (2, 16384), {**liger, **FULL},
             needs="liger_kernel"),
        Item("compiled/full/8x1024", SMALL, "full", (8, 1024), {"compile": "default"},
             effort="compiled"),
        Item("tf32/4x1024", SMALL, "full", (4, 1024), {"precision": "tf32"}),
    )  # fmt: skip


def _others() -> tuple[Item, ...]:
    """Other families that people fine-tune."""
    return (
        Item("family/llama2-7b/4x1024", "meta-llama/Llama-2-7b-hf", "lora", (4, 1024)),
        Item("family/qwen2.5-7b/4x1024/kept", "Qwen/Qwen2.5-7B", "lora", (4, 1024), FULL),
        Item("family/gemma2-2b/2x1024/eager", "google/gemma-2-2b", "lora", (2, 1024),
             {"attention": "eager"}),
        Item("family/qwen3-8b/2x2048/kept", "Qwen/Qwen3-8B", "lora", (2, 2048), FULL),
        Item("family/mistral-7b/2x2048/kept", "mistralai/Mistral-7B-v0.1", "qlora", (2, 2048),
             FULL),
    )  # fmt: skip


def _kinds() -> tuple[Item, ...]:
    """Layers of several kinds, experts, latent attention: nobody has measured them."""
    return (
        Item("kinds/qwen3.5-0.8b/4x1024", "Qwen/Qwen3.5-0.8B", "full", (4, 1024)),
        Item("kinds/qwen3.5-4b/2x1024", "Qwen/Qwen3.5-4B", "lora", (2, 1024)),
        Item("kinds/olmoe/2x1024", "allenai/OLMoE-1B-7B-0924", "lora", (2, 1024)),
        Item("kinds/gemma4-e2b/2x1024", "google/gemma-4-E2B", "lora", (2, 1024)),
        Item("kinds/v2-lite/2x1024", "deepseek-ai/DeepSeek-V2-Lite", "lora", (2, 1024), depth=9),
        Item("kinds/qwen3-30b/2x1024", "Qwen/Qwen3-30B-A3B", "lora", (2, 1024), depth=8),
    )


def _long() -> tuple[Item, ...]:
    """Three hundred steps of rows that differ: what the allocator comes to hold."""
    return (
        Item("held/8x1024", SMALL, "full", (8, 1024), {}, RAGGED, effort="long"),
        Item("held/8x1024/expandable", SMALL, "full", (8, 1024), {"extra": EXPANDABLE}, RAGGED,
             effort="long"),
    )  # fmt: skip


def _last() -> tuple[Item, ...]:
    """The same again, and under a limit."""
    return (
        Item("repeat/lora/4x1024", LARGE, "lora", (4, 1024)),
        Item("repeat/full/8x1024", SMALL, "full", (8, 1024)),
        Item("room/limited", SMALL, "full", (16, 1024), limit_gib=16.0),
        Item("lora/8x1024/kept", LARGE, "lora", (8, 1024), FULL),
        Item("lora/4x4096/kept", LARGE, "lora", (4, 4096), FULL),
    )
