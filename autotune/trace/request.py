"""What a traced step depends on, and how it follows from a job and a config. Free of torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.job import Job

LOW = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Everything a traced step depends on. `model` is a Hugging Face config as plain JSON."""

    model: dict[str, Any]
    num_layers: int
    micro_batch_size: int
    seq_len: int
    precision: str
    base: Literal["16bit", "32bit", "int8", "nf4"]
    attention: str
    activation_checkpointing: str
    optimizer: str
    rank: int  # 0: full fine-tuning
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    adapter_dtype: str = "fp32"
    autocast: bool = True
    upcast_norms: bool = False  # nf4/int8 with PEFT's preparation: norms in fp32
    loss: str = "upcast"
    padded: bool = False  # the batch carries a padding mask
    evaluation_rows: int = 0

    def as_json(self) -> str:
        """Canonical JSON: equal for equal requests."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StepRequest:
        """The request that `as_json` wrote."""
        fields = json.loads(text)
        fields["targets"] = tuple(fields["targets"])
        return cls(**fields)

    def at_depth(self, num_layers: int) -> StepRequest:
        """The same step of a model with another number of layers."""
        return replace(self, num_layers=num_layers)


def request_for(job: Job, config: Config, seq_len: int) -> StepRequest:
    """The step of a job under a config at one sequence length (the longest decides memory)."""
    method = job.method
    return StepRequest(
        model=json.loads(job.model.hf_config),
        num_layers=job.model.num_layers,
        micro_batch_size=config.micro_batch_size,
        seq_len=seq_len,
        precision=config.precision,
        base=method.base,
        attention="sdpa" if config.attention == "flash_attention_2" else config.attention,
        activation_checkpointing=config.activation_checkpointing,
        optimizer=config.optimizer,
        rank=method.rank if method.is_lora else 0,
        targets=method.targets,
        dropout=method.dropout,
        adapter_dtype=config.adapter_dtype,
        autocast=job.software.autocast and config.precision in LOW,
        loss=job.software.loss,
        padded=_is_padded(job, config),
    )


def _is_padded(job: Job, config: Config) -> bool:
    """Whether a batch of the job carries a padding mask: rows of different lengths, not packed."""
    several = config.micro_batch_size > 1 or job.padding == "max_length"
    varied = job.lengths.known and job.lengths.quantiles[0] < job.lengths.quantiles[-1]
    return several and varied and config.packing == "off"
