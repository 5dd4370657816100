"""By which signs a trainer's file says what it trains, where that is no supervised fine-tuning.

A sign is a key that is there with a certain value, the script that a command starts, or a class
that a script calls. Which of them holds: `scope`.
Source: the keys of axolotl 0.21, llamafactory 0.9.5 and its v1, torchtune 0.6.1, litgpt 0.5.13 and
the configs of trl 1.16 (DPOConfig, GRPOConfig, ...); unsloth 2026.10.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.catalog.models.families import SEES
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.objective import Objective


@dataclass(frozen=True, slots=True)
class Sign:
    """One key that says what is trained. pattern: of its whole value as text, in any case."""

    objective: Objective
    key: str
    pattern: str = r".+"
    unless: tuple[str, ...] = ()  # keys that stand for another job where they are stated
    of_text: bool = True  # whether it says so beside a model that reads nothing but text


_ON = r"true|1|yes|on"
_PICTURES = r".*(stable-diffusion|/sdxl|/flux\.).*"
_EARS = r".*(whisper|voxtral|/csm-|-asr\b).*"
_STEPS = ("optimizer", "optim", "train", "stage", "do_train", "train_dataset", "datasets",
          "per_device_train_batch_size", "num_train_epochs")  # fmt: skip
_TRAINS = (
    "dataset", "dataset_dir", "output_dir", "learning_rate", "tokenized_path", "num_train_epochs",
    "max_steps", "gradient_accumulation_steps", "export_dir",
)  # fmt: skip
_LEARNS = ("learning_rate", "lr", "epoch", "epochs", "num_epochs", "train_batch_size")
_AXOLOTL = (
    Sign("reward", "reward_model", _ON), Sign("reward", "process_reward_model", _ON),
    Sign("rl", "rl", r"grpo|gdpo|ppo|ebft|rloo"), Sign("dpo", "rl", "dpo|ipo"),
    Sign("kto", "rl", "kto"), Sign("orpo", "rl", "orpo|simpo"), Sign("preference", "rl"),
    Sign("distillation", "kd_trainer", _ON), Sign("distillation", "plugins", r".*KDPlugin.*"),
    Sign("diffusion", "plugins", r".*DiffusionPlugin.*"),
    Sign("classification", "num_labels"), Sign("audio", "base_model", _EARS),
    Sign("classification", "model_type", r".*ForSequenceClassification"),
    Sign("vision", "processor_type"), Sign("vision", "base_model", SEES),
    Sign("pretraining", "pretraining_dataset"),
)  # fmt: skip
_FACTORY = (
    Sign("reward", "stage", "rm"), Sign("rl", "stage", "ppo"),
    Sign("rl", "reward_model_name_or_path"),
    Sign("kto", "stage", "kto"), Sign("orpo", "stage", "orpo|simpo"),
    Sign("orpo", "pref_loss", "orpo|simpo"), Sign("dpo", "stage", "dpo"),
    Sign("merging", "export_dir", unless=("do_train",)),
    Sign("evaluation", "do_predict", _ON, unless=("do_train",)),
    Sign("inference", "infer_backend", unless=_STEPS),
    Sign("rl", "stage", r"grpo|gspo|rloo|reinforce\w*"),
    Sign("inference", "sample_backend", unless=_STEPS),
    Sign("evaluation", "task", r".*(mmlu|ceval|cmmlu).*"),
    *(Sign("vision", key, of_text=False) for key in (  # of models with a tower: model/visual.py
        "image_max_pixels", "video_max_pixels", "freeze_vision_tower", "image_resolution",
        "freeze_multi_modal_projector", "train_mm_proj_only",
    )),
    Sign("audio", "model_name_or_path", _EARS), Sign("vision", "model_name_or_path", SEES),
    Sign("vision", "model", SEES), Sign("vision", "model_class", "(m|v)llm"),
    Sign("classification", "model_class", "cls|classification"),
    Sign("preference", "train_dataset", r".*(dpo|preference|pairwise).*"),
    Sign("vision", "train_dataset", r".*(multimodal|mllm).*"),
    Sign("pretraining", "stage", "pt"),
    Sign("inference", "template", unless=(*_STEPS, *_TRAINS)),
    Sign("inference", "adapter_name_or_path", unless=(*_STEPS, *_TRAINS)),
)  # fmt: skip
_TUNE = (
    Sign("evaluation", "tasks", unless=("optimizer",)),
    Sign("merging", "quantizer", unless=("optimizer",)),
    Sign("inference", "max_new_tokens", unless=("optimizer",)),
    Sign("distillation", "teacher_model"), Sign("distillation", "kd_ratio"),
    Sign("rl", "loss._component_", r".*(grpo|ppo).*"), Sign("rl", "kl_coeff"),
    Sign("rl", "ppo_epochs"), Sign("rl", "grpo_samples"), Sign("rl", "orchestration"),
    Sign("orpo", "loss._component_", r".*simpo.*"),
    Sign("dpo", "loss._component_", r".*(dpo|rsoloss|ipo).*"),
    Sign("preference", "dataset._component_", r".*(preference|paired|hh_rlhf).*"),
    Sign("classification", "model._component_", r".*(classifier|reward).*"),
    Sign("vision", "model._component_", r".*(vision|flamingo|early_fusion).*"),
    Sign("vision", "tokenizer.image_size"),
    Sign("evaluation", "checkpointer._component_", unless=("optimizer", "epochs", "batch_size")),
)  # fmt: skip
_LITGPT = (
    Sign("inference", "max_new_tokens"), Sign("pretraining", "train.max_tokens"),
    Sign("pretraining", "initial_checkpoint_dir"), Sign("pretraining", "model_name"),
)  # fmt: skip
_ARGUMENTS = (
    Sign("rl", "actor_model_name_or_path"), Sign("rl", "critic_model_name_or_path"),
    Sign("rl", "num_generations"), Sign("rl", "reward_funcs"), Sign("rl", "kl_coef"),
    Sign("rl", "num_ppo_epochs"), Sign("rl", "reward_model_path"), Sign("rl", "vllm_mode"),
    Sign("distillation", "teacher_model_name_or_path"), Sign("distillation", "lmbda"),
    Sign("orpo", "loss_type", "simpo|orpo"), Sign("kto", "loss_type", "kto|kto_pair"),
    Sign("dpo", "loss_type", r"dpo|sigmoid|hinge|ipo|apo_\w+"), Sign("dpo", "rpo_alpha"),
    Sign("dpo", "use_dpo", _ON), Sign("dpo", "dpo_beta"), Sign("orpo", "gamma_beta_ratio"),
    Sign("preference", "loss_type", r"bco_pair"), Sign("dpo", "ref_model"),
    Sign("rl", "reward_model_name_or_path"),
    Sign("preference", "max_prompt_length"), Sign("preference", "beta"),
    Sign("preference", "prompt_max_length"),
    Sign("reward", "center_rewards_coefficient"), Sign("classification", "num_labels"),
    Sign("classification", "task_name", r"cola|mnli|mrpc|qnli|qqp|rte|sst2|stsb|wnli"),
    Sign("evaluation", "do_predict", _ON, unless=("do_train", "per_device_train_batch_size")),
    Sign("inference", "max_new_tokens", unless=(*_STEPS, *_LEARNS)),
    Sign("audio", "model_name_or_path", _EARS), Sign("vision", "model_name_or_path", SEES),
    Sign("vision", "vision_tower"), Sign("vision", "mm_projector_lr"),
    Sign("vision", "vision_model_id"), Sign("vision", "vision_model_name_or_path"),
    Sign("vision", "vision_encoder"), Sign("vision", "freeze_vision"),
    Sign("vision", "image_folder"), Sign("vision", "image_encoder_name_or_path"),
    Sign("diffusion", "model_name_or_path", _PICTURES),
    Sign("diffusion", "resolution"), Sign("diffusion", "pretrained_teacher_model"),
)  # fmt: skip
_SWIFT = (
    Sign("audio", "model", _EARS), Sign("vision", "model", SEES),
    Sign("vision", "freeze_vit"), Sign("vision", "max_pixels"),
    Sign("rl", "rlhf_type", r"ppo|grpo"), Sign("distillation", "rlhf_type", r"gkd|opd\w*"),
    Sign("kto", "rlhf_type", "kto"), Sign("orpo", "rlhf_type", "orpo|simpo|cpo"),
    Sign("dpo", "rlhf_type", "dpo"), Sign("reward", "rlhf_type", "rm"),
    Sign("distillation", "teacher_model"), Sign("classification", "task_type", "seq_cls"),
    Sign("embedding", "task_type", r"embedding|(generative_)?reranker"),
    Sign("classification", "num_labels"), Sign("rl", "reward_funcs"), Sign("rl", "num_generations"),
)  # fmt: skip
SIGNS: Final[Mapping[str, Sequence[Sign]]] = {
    "axolotl": _AXOLOTL, "llamafactory": _FACTORY, "torchtune": _TUNE, "litgpt": _LITGPT,
    "hf": _ARGUMENTS, "trl": _ARGUMENTS, "unsloth": _ARGUMENTS,
    "swift": _SWIFT,
}  # fmt: skip

# Scripts and subcommands by their stem, and classes that a script calls.
PROGRAMS: tuple[tuple[Objective, str], ...] = (
    ("rl", r"(\w*_)?(a?grpo|gspo|ppo|rloo|online_dpo|nash_md|xpo|ssd|sdpo|reinforce)(_\w+)?"),
    ("dpo", r"(?!.*sft)([a-z\d]+_)*dpo(_\w+)?"), ("kto", r"(?!.*sft)([a-z\d]+_)*kto(_\w+)?"),
    ("orpo", r"(?!.*sft)([a-z\d]+_)*(orpo|cpo|simpo)(_\w+)?"),
    ("preference", r"(run_|train_)?(bco|tpo|mpo)(_\w+)?"),
    ("reward", r"(\w+_)?(reward|reward_model(l?ing|s)?|prm|rm)(_train(er|ing)?)?"),
    ("distillation", r"(gkd|gold|distill?(ation)?|minillm|sdft)(_\w+)?"),
    ("vision", (r"(sft|train)_vlm(_\w+)?|train_dreambooth\w*|\w*image_classification\w*|"
               r"\w*multi_?modal\w*|gr00t\w*")),
    ("diffusion", r"(\w*_)?(t2i|text_to_image|unet)(_\w+)?"),
    ("classification", r"(\w+_)?run_(glue|classification|ner|xnli|swag|squad|qa)\w*"),
    ("evaluation", r"(run_|lm_)?eval(uate|uation)?(_\w+)?"),
    ("preparation", (r"(pre_?process|prepare|(pre)?tokeni[sz]e|download)(_\w*)?|(make|build|create|"
                    r"gen|generate|convert|split|filter)_(\w+_)?(data|datasets?|corpus)(_\w+)?")),
    ("inference", (r"(\w+_)?(infer|inference)|(chat|generate|infer|inference|deploy|rollout|"
                  r"vllm_infer|serve|vllm-serve)(_\w+)?")),
    ("merging", r"(merge|convert|export)(_\w+)?"),
)  # fmt: skip
CALLS: tuple[tuple[Objective, str], ...] = (
    ("rl", r"(Async)?(GRPO|PPO|RLOO|OnlineDPO|NashMD|XPO|SSD|SDPO)(Config|Trainer)"),
    ("orpo", r"(ORPO|CPO|SimPO)(Config|Trainer)"), ("kto", r"KTO(Config|Trainer)"),
    ("dpo", r"DPO(Config|Trainer)"), ("preference", r"(BCO|TPO)(Config|Trainer)|PatchDPOTrainer"),
    ("reward", r"([A-Z]\w*)?(Reward|PRM)(Config|Trainer)"),
    ("distillation", r"(GKD|GOLD|MiniLLM|SDFT|\w*Distill\w*)(Config|Trainer)"),
    ("embedding", r"(Fast)?SentenceTransformer\w*"),
    ("classification", r"AutoModelFor(Sequence|Token|Image|Audio)Classification|num_labels"),
    ("audio", r"(Whisper|Csm|Voxtral)\w*|AutoModelForSpeechSeq2Seq|finetune_audio_layers"),
    ("vision", (r"FastVisionModel|UnslothVisionDataCollator|AutoModelForImageTextToText|"
                r"AutoModelForVision2Seq|\w*VisionTrainer|finetune_vision_layers|"
                r"GR00T\w*|(PaliGemma|Qwen\d\w*VL|Qwen2_5_VL|Llava\w*|Idefics\d?|Mllama|SmolVLM|Pixtral|"
                r"InternVL|Blip\w*|Florence\w*)(ForConditionalGeneration|Processor)")),
    ("encoder", r"AutoModelFor(MaskedLM|Seq2SeqLM)|(M?T5|M?Bart|Pegasus)ForConditionalGeneration"),
    ("diffusion", r"(StableDiffusion|UNet2D|DDPM)\w*"),
)  # fmt: skip

# TRL's own sft.py: the model's architecture says which class loads it, and its name what it is.
BY_ARCHITECTURE = {"MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "AutoModelForCausalLM"}

# A program's name that says nothing, and folders that then do. Source: DeepSpeedExamples,
# applications/DeepSpeed-Chat/training: every step there is a main.py of its own.
PLAIN_PROGRAM = "main"
FOLDERS: tuple[tuple[Objective, str], ...] = (
    ("dpo", r"step\d_dpo_finetuning"), ("reward", r"step\d_reward_model_finetuning"),
    ("rl", r"step\d_rlhf_finetuning"),
)  # fmt: skip
