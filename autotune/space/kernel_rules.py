"""What the values of `kernels` need: a trainer, a family, a device, other knobs.

Source: liger-kernel 0.8.5 transformers/monkey_patch.py, MODEL_TYPE_TO_APPLY_LIGER_FN, read
2026-11-22; trl 1.16 trainer/sft_trainer.py; transformers 5.23 training_args.py; axolotl 0.21
integrations/liger and integrations/cut_cross_entropy; llamafactory 0.9.5 model_args.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.software import TRL_CHUNKS_FROM

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

# Model types of decoders of text that Liger 0.8.5 patches; any other it leaves as it is.
LIGER_FAMILIES = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2",
     "gemma3_text", "gemma4_text", "glm4", "gpt_oss", "granite", "hunyuan_v1_dense",
     "hunyuan_v1_moe", "llama", "llama4_text", "ministral", "mistral", "mixtral", "muse_glimmer",
     "nemotron", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5_moe_text", "qwen3_5_text",
     "qwen3_moe", "qwen3_next", "smollm3"}
)  # fmt: skip
TRITON_CAPABILITY = 7.0  # Triton's README: NVIDIA GPUs from Volta on
# Trainers with a switch for Liger, and with a tiled loss that is not their default; "" is a job
# that was not read from a trainer's own file: it is exported to hf or trl.
LIGER_TRAINERS = frozenset({"", "hf", "trl", "axolotl", "llamafactory"})
CHUNKED_TRAINERS = frozenset({"", "axolotl"})


def trainer_of(job: Job) -> str:
    """The trainer whose own file the job was read from; empty where there is none."""
    return job.origin.trainer if job.origin else ""


def trainer_has_kernels(job: Job, _offer: Offer, kernels: str) -> bool:
    """Whether the trainer and the installed software have them, and not by default already."""
    trainer = trainer_of(job)
    software = job.software
    if kernels == "none":
        return True
    if software.own_model or software.kernels != "eager":
        return False
    if kernels == "liger":
        return software.liger_kernel is not None and trainer in LIGER_TRAINERS
    tiles = trainer == "axolotl" or (software.trl is not None and software.trl >= TRL_CHUNKS_FROM)
    return trainer in CHUNKED_TRAINERS and tiles and software.loss not in {"chunked", "fused"}


def family_has_kernels(job: Job, _offer: Offer, kernels: str) -> bool:
    """Whether Liger patches the model's class. A loss of its own needs no family."""
    return kernels != "liger" or job.model.family in LIGER_FAMILIES


def triton_runs(_job: Job, offer: Offer, kernels: str) -> bool:
    """Whether Triton compiles for the device."""
    device = offer.device
    capable = device.vendor == "amd" or device.compute_capability >= TRITON_CAPABILITY
    return kernels == "none" or (not device.is_cpu and capable)


def kernels_run_eagerly(_job: Job, _offer: Offer, kernels: str, compiled: str) -> bool:
    """Compiling fuses the same operations: the two do not add up, and graphs break.

    Source: linkedin/Liger-Kernel issue 642 (with torch.compile 40 hours slower).
    """
    return kernels == "none" or compiled == "off"
