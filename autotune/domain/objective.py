"""What a training optimises, and what one row of it takes: sequences trained on, and only scored.

Priced are those of `WORK`; how a trainer's file says its own is in `autotune.trainers.scope`.
"""

from __future__ import annotations

from typing import Final, Literal

from autotune.frozen import dataclass

Objective = Literal[
    "sft", "pretraining", "dpo", "kto", "orpo", "reward", "preference", "rl", "distillation",
    "classification", "embedding", "encoder", "vision", "audio", "diffusion", "evaluation",
    "inference", "merging", "preparation",
]  # fmt: skip
AS_SFT = "sft"


@dataclass(frozen=True, slots=True)
class Work:
    """What one row takes.

    time_sd, memory_sd: log standard deviations that no measured run has narrowed: assumptions.
    """

    sequences: int = 1  # through forward and backward: a pair is two
    scored: int = 0  # through a forward without gradients, in every step
    reference: bool = False  # by weights that are not trained: adapters off, or a second copy
    time_sd: float = 0.0
    memory_sd: float = 0.0


# dpo (and IPO, hinge, ...): the chosen and the rejected answer in one batch; the reference scores
# both. kto: the row; the row's prompt with another answer, scored by the policy; the reference
# scores both. orpo (and SimPO, CPO): both answers and no reference. reward: both answers.
# Source: trl 1.16 trainer/dpo_trainer.py, kto_trainer.py and reward_trainer.py (_compute_loss),
# experimental/orpo/orpo_trainer.py and experimental/cpo/cpo_trainer.py (concatenated_forward).
WORK: Final[dict[Objective, Work]] = {
    "sft": Work(),
    "pretraining": Work(),
    "dpo": Work(2, 2, reference=True, time_sd=0.25, memory_sd=0.15),
    "kto": Work(1, 3, reference=True, time_sd=0.30, memory_sd=0.15),
    "orpo": Work(2, 0, time_sd=0.25, memory_sd=0.15),
    "reward": Work(2, 0, time_sd=0.25, memory_sd=0.15),
}
REINFORCED: Final = frozenset({"rl", "grpo", "gspo", "ppo", "rloo", "reinforce", "rlhf"})
Stated = Literal["sft", "dpo", "kto", "orpo", "reward"]  # what a job file may say
PAIRED: Final[dict[Objective, str]] = {  # learns from preferences: what a step runs
    "dpo": "a row is a chosen and a rejected answer, and a reference model scores both",
    "kto": "a row is scored beside another answer of its batch, and a reference model scores both",
    "orpo": "a row is a chosen and a rejected answer, without a reference model",
    "reward": "a row is a chosen and a rejected answer, each given one number",
}
