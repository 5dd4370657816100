"""What a traced step depends on, and how it follows from a job and a config. Free of torch."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.models import local_folder
from autotune.domain.config import FLASH
from autotune.domain.objective import PAIRED
from autotune.domain.software import EVALUATES_WITHOUT_CACHE_FROM
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.job import Base, Job
    from autotune.domain.model import Model
    from autotune.domain.software import KbitUpcast

LOW = ("bf16", "fp16")
LOSSES = ("upcast", "upcast_copy", "chunked")  # those that the trace can run
NO_STATES = "paged_adamw_8bit"  # an optimizer without states on the device, to the trace
STACKED_EXPERTS_FROM = (5, 0)  # transformers whose experts are one parameter of a layer
TRUST = "--trust-remote-code"


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Everything a traced step depends on. `model` is a Hugging Face config as plain JSON."""

    model: dict[str, Any]
    num_layers: int
    micro_batch_size: int
    seq_len: int
    precision: str
    base: Base
    attention: str
    activation_checkpointing: str
    optimizer: str
    rank: int  # 0: full fine-tuning
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    dora: bool = False
    adapter_dtype: str = "fp32"
    autocast: bool = True
    kbit_upcast: KbitUpcast = "none"  # what a quantised base keeps in fp32
    loss: str = "upcast"
    padded: bool = False  # the batch carries a padding mask
    trains: bool = True  # False: a run that only evaluates
    accumulates: bool = False  # gradients of earlier micro-steps are alive during the forward
    evaluation_rows: int = 0  # of one evaluation batch; 0: no evaluation
    evaluation_cache: bool = False  # scoring fills a key-value cache as well
    generate_tokens: int = 0  # generated for each evaluation row
    remote: str = ""  # folder or hub id whose own code runs; "": only classes of transformers
    double_quant: bool = True  # the scales of 4-bit blocks are quantised too
    modules_to_save: tuple[str, ...] = ()  # trained whole beside the adapters
    saved_dtype: str = "fp32"
    base_dtype: str = ""  # of a 16-bit base, where not what the step computes in

    def as_json(self) -> str:
        """Canonical JSON: equal for equal requests."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StepRequest:
        """The request that `as_json` wrote."""
        fields = json.loads(text)
        fields["targets"] = tuple(fields["targets"])
        fields["modules_to_save"] = tuple(fields["modules_to_save"])
        return cls(**fields)

    def at_depth(self, num_layers: int) -> StepRequest:
        """The same step of a model with another number of layers."""
        return replace(self, num_layers=num_layers)


def request_for(
    job: Job, config: Config, seq_len: int, *, trust_remote_code: bool = False
) -> StepRequest:
    """The step of a job under a config at one sequence length (the longest decides memory)."""
    method, plan = job.method, job.evaluation
    software = job.software.running(config.kernels)
    return StepRequest(
        model=json.loads(job.model.hf_config),
        num_layers=job.model.num_layers,
        micro_batch_size=config.micro_batch_size,
        seq_len=seq_len,
        precision=config.precision,
        base=method.base,
        double_quant=method.double_quant,
        modules_to_save=method.modules_to_save,
        saved_dtype=_saved_dtype(job, config),
        base_dtype=software.base_dtype,
        attention="sdpa" if config.attention in FLASH else config.attention,
        activation_checkpointing=config.activation_checkpointing,
        optimizer=NO_STATES if software.no_moments else config.optimizer,
        rank=method.rank if method.is_lora else 0,
        targets=method.targets,
        dropout=method.dropout,
        dora=method.is_dora,
        adapter_dtype=config.adapter_dtype,
        autocast=job.software.autocast and config.precision in LOW,
        kbit_upcast=job.software.kbit_upcast,
        loss=software.loss,
        padded=_is_padded(job, config),
        trains=job.steps > 0,
        accumulates=config.gradient_accumulation_steps > 1,
        evaluation_rows=plan.rows_at_once(config.micro_batch_size) if plan else 0,
        evaluation_cache=job.software.transformers < EVALUATES_WITHOUT_CACHE_FROM,
        generate_tokens=plan.generate_tokens if plan else 0,
        remote=code_folder(job.model) if trust_remote_code and job.model.remote_code else "",
    )


def _saved_dtype(job: Job, config: Config) -> str:
    """The dtype of what trains whole, in words of precision: see `Software.saves_as_loaded`."""
    prepared = job.method.is_quantised and job.software.kbit_upcast == "all"
    narrow = config.adapter_dtype == "bf16"
    if job.software.saves_as_loaded:
        narrow = job.method.base != "32bit" and not prepared
    return "bf16" if narrow and config.precision != "fp16" else "fp32"


def code_folder(model: Model) -> str:
    """The folder or hub id that a model's own code is read from."""
    folder = local_folder(model)
    return model.name if folder is None else str(folder)


def untraceable(job: Job, *, trust_remote_code: bool) -> str:
    """Why the installed classes cannot stand for this job's training code; "" when they can."""
    software, model = job.software, job.model
    reasons = (
        (
            model.remote_code and not trust_remote_code,
            f"its code is not part of transformers and runs only with {TRUST}",
        ),
        (job.objective in PAIRED, f"the trace runs supervised steps, not those of {job.objective}"),
        (model.hf_config == "{}", "its config.json is not known"),
        (software.own_model, f"{software.stack} has model code of its own"),
        (
            software.kernels != "eager",
            f"{software.kernels} kernels keep other tensors than the classes of transformers",
        ),
        (
            software.loss not in LOSSES,
            f"the installed transformers has no loss of kind {software.loss!r}",
        ),
        (
            model.is_moe and software.transformers < STACKED_EXPERTS_FROM,
            "before transformers 5 every expert was a module of its own",
        ),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _is_padded(job: Job, config: Config) -> bool:
    """Whether a batch of the job carries a padding mask: rows of different lengths, not packed."""
    several = config.micro_batch_size > 1 or job.padding == "max_length"
    varied = job.lengths.known and job.lengths.quantiles[0] < job.lengths.quantiles[-1]
    return several and varied and config.packing == "off"
