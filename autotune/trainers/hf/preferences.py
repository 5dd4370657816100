"""TRL's trainers of preferences and of rewards: what tells each from SFTTrainer.

Source: trl 1.0, 1.5 to 1.9, 1.12 and 1.14 to 1.16: trainer/dpo_trainer.py, trainer/kto_trainer.py,
trainer/reward_trainer.py, experimental/orpo/orpo_trainer.py, and the config beside each. Beta and
the kind of loss are left to TRL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.catalog.software import TRL_TILES_PAIRS_FROM
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.frozen import dataclass
from autotune.trainers.hf.precision import weights_dtype
from autotune.trainers.versions import ACTIVATION_CHECKPOINTING, KNOWN, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.job import Job
    from autotune.domain.objective import Objective
    from autotune.trainers.contract import Plan
    from autotune.trainers.versions import Version

TEMPLATE = "preferences.py.txt"  # a script of DPO's; another trainer's has its words in place


@dataclass(frozen=True, slots=True)
class PairTrainer:
    """One of them. pads, offloads: the first version of TRL that can; None: none can."""

    name: str  # of the class, in front of Trainer and Config
    learning_rate: float  # the config's default
    module: str = "trl"
    pads: Version | None = KNOWN["trl"][0]  # to more than the longest row of a batch
    offloads: Version | None = KNOWN["trl"][0]  # activations, by an argument of its own
    tiles: Version | None = None  # its loss never holds all logits
    logits: bool = True  # whether there are any: a reward is one number a row
    needs: tuple[str, ...] = ("chosen", "rejected")  # columns of the rows

    @property
    def file(self) -> str:
        """The file of its arguments."""
        return f"{self.name.casefold()}_config.json"


TRAINERS: Final[Mapping[Objective, PairTrainer]] = {
    "dpo": PairTrainer("DPO", 1e-6, tiles=TRL_TILES_PAIRS_FROM),
    "kto": PairTrainer("KTO", 1e-6, pads=(1, 7), offloads=(1, 8), tiles=TRL_TILES_PAIRS_FROM,
                       needs=("prompt", "completion", "label")),
    "orpo": PairTrainer("ORPO", 1e-6, module="trl.experimental.orpo", pads=None, offloads=None),
    "reward": PairTrainer("Reward", 1e-4, logits=False),
}  # fmt: skip


def columns_of(job: Job) -> tuple[str, ...]:
    """What every row needs; nothing where the objective is no preference."""
    return TRAINERS[job.objective].needs if job.objective in TRAINERS else ()


def check_rows(job: Job, trl: Version) -> None:
    """Raise InputError for a job whose rows the trainer of its objective cannot take."""
    trainer = TRAINERS[job.objective]
    name = f"{trainer.name}Trainer of TRL {show(trl)}"
    if job.pretokenized:
        msg = f"{name} tokenises its rows itself, and the job's are tokens already"
        raise InputError(msg, f"give rows with {' and '.join(trainer.needs)} as text or messages")
    if job.tokenizer == BYTES:
        msg = f"{name} ends every answer with the tokenizer's own end token, and bytes have none"
        raise InputError(msg, "name a tokenizer with one in data.tokenizer")
    if job.padding == "max_length" and (trainer.pads is None or trl < trainer.pads):
        newer = f", or name trl@{show(trainer.pads)} or later" if trainer.pads else ""
        msg = f"{name} pads to the longest row of a batch, and the job pads to max_length"
        raise InputError(msg, f"set data.padding to longest{newer}")


def pair_arguments(plan: Plan, trl: Version) -> dict[str, object]:
    """What the config of the objective's trainer has beside TrainingArguments."""
    job, trainer = plan.job, TRAINERS[plan.job.objective]
    loading: dict[str, object] = {
        "dtype": weights_dtype(plan),
        "attn_implementation": plan.config.attention,
    }
    if trainer.module != "trl":
        loading["device_map"] = None  # "auto", where nothing is said, spreads a process over all
    arguments: dict[str, object] = {"max_length": job.max_length, "model_init_kwargs": loading}
    if job.work.reference:
        arguments["precompute_ref_log_probs"] = False  # the reference scores in every step
    if job.padding == "max_length":
        arguments["pad_to_multiple_of"] = job.max_length
    by_argument = plan.transformers < ACTIVATION_CHECKPOINTING  # else the checkpoints say it
    able = trainer.offloads is not None and trl >= trainer.offloads
    if plan.config.offload == "activations" and by_argument and able:
        arguments["activation_offloading"] = True
    return arguments


def pair_words(job: Job) -> dict[str, str]:
    """What stands in the script of the objective's trainer where DPO's has its own words."""
    trainer = TRAINERS[job.objective]
    words = {
        "from trl import DPOConfig": f"from {trainer.module} import DPOConfig",
        "DPO": trainer.name,
        "dpo_config.json": trainer.file,
    }
    if not trainer.logits:
        words |= {
            "AutoModelForCausalLM": "AutoModelForSequenceClassification",
            "AutoConfig.from_pretrained(MODEL)": "AutoConfig.from_pretrained(MODEL, num_labels=1)",
            '"CAUSAL_LM"': '"SEQ_CLS"',
        }
    return words


def pair_notes(plan: Plan, trl: Version) -> list[str]:
    """What the trainer does otherwise than was priced, and what it leaves out of the data."""
    trainer, config = TRAINERS[plan.job.objective], plan.config
    name = f"{trainer.name}Trainer of TRL {show(trl)}"
    notes = [f"beta and the kind of loss are {name}'s own: add yours to {trainer.file}"]
    loss = plan.job.software.running(config.kernels).loss
    holds = loss in {"upcast", "upcast_copy", "native", "inplace"}
    tiled = not trainer.logits or (
        trainer.tiles is not None and (trl >= trainer.tiles or config.kernels == "liger")
    )
    if holds and tiled:
        notes.append(f"{name} never holds all logits, which were priced: expect less memory")
    if not holds and not tiled:
        notes.append(Decisive(f"{name} holds all logits, priced without them: expect more memory"))
    able = trainer.offloads is not None and trl >= trainer.offloads
    old = plan.transformers < ACTIVATION_CHECKPOINTING
    if config.offload == "activations" and old and not able:
        msg = f"{name} does not offload activations: transformers {show(ACTIVATION_CHECKPOINTING)}"
        notes.append(Decisive(f"{msg} does"))
    if plan.job.objective == "reward":
        notes.append("rows with more tokens than max_length are left out of the training, not cut")
    if plan.config.sharding == "zero3" and plan.job.method.is_lora and not plan.quantized:
        notes.append(f"under ZeRO-3 {name} keeps adapters in the dtype of the base weights")
    return notes
