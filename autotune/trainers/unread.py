"""Keys that no reader asks for though they decide time, memory, or whether the run starts at all.

Of a trainer's own keys all others that stay unread are harmless: names, logging, schedules of the
learning rate. Settings that are no trainer's a program of people's own reads, and this package does
not. What such a setting does is not known, so each is said unless its name shows that it moves
neither time nor memory: data, prompts, logs, evaluation, rates.

How far each may move a run is an assumption on the wide side; none of them is priced.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.domain.config import ZERO_STAGE
from autotune.domain.job import Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.hf.keys import MODEL, OWN_LENGTH

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from autotune.trainers.parsed import Keys, Parsed

_OFF = {
    "", "false", "none", "null", "0", "0.0", "1.0", "[]", "{}", "auto", "default", "off", "peft",
}  # fmt: skip


class Kind(NamedTuple):
    """Keys of one kind: what they do, and log standard deviations of a step and of the peak."""

    pattern: str
    does: str
    time_sd: float
    memory_sd: float
    above: float | None = None  # numbers up to this one are as if the key were not there


_KINDS: Final = (
    Kind(r"(context|tensor|expert|sequence|pipeline)_parallel_(size|degree|dim)|cp_size|tp_size|"
          r"ep_size|sp_size|dp_replicate_size|mp_replicate_size|pp_size",
          "splits one sequence or one layer over devices: not priced", 0.40, 0.50, 1.0),
    Kind(r"parallelism_config|ring_attn_func|heads_k_stride",
          "splits sequences over devices: not priced", 0.40, 0.50),
    Kind(r"qat(_\w+)?|quantizer|quantization_aware\w*",
          "trains through rounded weights: slower, and more is kept", 0.30, 0.20),
    Kind(r"use_(galore|apollo|badam|adam_mini|muon)|galore_\w*rank|apollo_\w*rank",
          "another optimizer than is counted: other states", 0.15, 0.30),
    Kind(r"lisa_\w+|relora\w*|unfrozen_parameters|freeze_trainable_\w+|freeze_extra_modules|"
          r"use_llama_pro|lora_fa|finetune_last_n_layers|spectrum_\w+|"
          r"(freeze|trainable)_parameters\w*|freeze_llm",
          "trains other weights than are counted", 0.25, 0.30),
    Kind(r"(lora_)?modules_to_save|additional_target|(lora_)?target_parameters|peft_layers_to_\w+|"
          r"(peft_)?trainable_token_indices|layers_to_transform|(lora_)?rank_pattern|"
          r"alpha_pattern|(peft_)?ensure_weight_tying|trainable_params|target_regex|"
          r"(peft_)?layer(s_pattern|_replication)",
          "trains or leaves out more weights than are counted", 0.15, 0.25),
    Kind(r"lora_(mlp|qkv|o|embedding)_kernel",
          "fuses adapters with their weights: faster and smaller than is counted", 0.15, 0.15),
    Kind(r"tiled_mlp\w*|unsloth_tiled_mlp|layer_offloading|use_unsloth_gc|offload_embedding",
          "keeps less on the device than is counted, and is slower", 0.25, 0.30),
    Kind(r"use_mca|use_hyper_parallel|tuner_backend|trainer_cls|kd_trainer|diffusion_lm|dense_mixer|"
          r"mora|use_v1_kernels|deepcompile|kd_loss|teacher_model",
          "trains by other code than is counted", 0.30, 0.30),
    Kind(r"label_smoothing(_factor)?", "makes the logits' logarithms once more for its loss",
          0.05, 0.20),
    Kind(r"num_nodes", "trains on several machines: one is counted", 0.40, 0.30, 1.0),
    Kind(r"split_batches", "splits the batch of a device: it is counted whole", 0.30, 0.50),
    Kind(r"full_determinism|cudnn_deterministic_mode", "takes slower kernels", 0.20, 0.05),
    Kind(r"torch_empty_cache_steps|gc_steps|gc_collect_steps",
          "gives cached memory back every few steps: slower", 0.10, 0.05, 0.0),
    Kind(r"zero_hpz_partition_size|zero_quantized_\w+",
          "ZeRO++: more on each device, and less between them", 0.25, 0.30, 1.0),
    Kind(r"selective_checkpointing|dynamic_checkpoint|ac_mode|ac_option|checkpoint_skip_layers",
          "recomputes otherwise than is counted", 0.20, 0.30),
    Kind(r"sage_attention|flash_attn_\w+|s2_attention|xformers_attention|flex_attention|shift_attn|"
          r"mixture_of_depths|use_unsloth|mixture_of_experts\w*|flash_attn_fuse_\w+",
          "other kernels than are counted", 0.20, 0.20),
    Kind(r"moe_\w*(kernel|backend)s?|experts_implementation|use_scattermoe|"
          r"use_sonicmoe|use_kernels|moe_bnb_fast",
          "other kernels or storage of experts than are counted", 0.30, 0.30),
    Kind(r"use_kt|kt_\w+|fast_inference|use_onebitllms|use_quartet\w*|gptq|nvfp4\w*|use_hadamard|"
          r"load_in_fp8",
          "other weights on the device than are counted", 0.40, 0.40),
    Kind(r"fsdp_cpu_offload|offload_params|cpu_offload|low_cpu_ram_offload|zero_offload|offload|"
          r"optim(izer)?_(cpu_)?offload|offload_optim(izer)?|offload_layers",
          "moves states into the host's memory: less on the device, slower", 0.40, 0.40),
    Kind(r"streaming|max_tokens_per_step|batch_flattening|multipack_real_batches|use_dft_packing|"
          r"dynamic_batching|batching_strategy|pretraining_dataset|dpo_padding_free",
          "forms batches otherwise than is counted", 0.20, 0.10),
    Kind(r"pre_seq_len|prefix_projection|num_virtual_tokens",
          "trains a prefix of every layer, and not the weights that are counted", 0.25, 0.30),
    Kind(r"padding_free",
          "lays rows end to end, and fills none up: faster, and smaller", 0.20, 0.15),
    Kind(r"precompute_ref_log_probs",
          "scores the reference once before training, not in every step: faster, and smaller",
          0.25, 0.30),
    Kind(r"micro_train_batch_size", "splits the batch of a device: it is counted whole",
          0.30, 0.50),
    Kind(r"do_mmlu_eval|generate_during_eval",
          "evaluates by more than the loss: the run takes longer", 0.10, 0.05),
    Kind(r"use_ray|device_groups", "starts processes on devices that are not counted",
          0.30, 0.30),
    Kind(r"auto_find_batch_size", "changes the micro-batch when memory runs out", 0.20, 0.10),
)  # fmt: skip


def decisive(keys: Keys, rest: list[str]) -> list[Uncounted]:
    """Those of the unread keys that decide something, with what they do.

    Args:
        keys: the file.
        rest: dotted names that nobody asked for.
    """
    found = _other_shards(keys)
    for key in rest:
        value, last = keys.at(key), key.rpartition(".")[2]
        if str(value).strip().casefold() in _OFF:
            continue
        kind = kind_of(last)
        if kind is not None and _is_above(value, kind.above):
            found.append(Uncounted(key, shown(value), kind.does, kind.time_sd, kind.memory_sd))
    return found


def kind_of(name: str) -> Kind | None:
    """What a key of this name does, if it decides something."""
    return next((kind for kind in _KINDS if re.fullmatch(kind.pattern, name)), None)


# FSDP's other ways, by their names and by the numbers of torch's ShardingStrategy, and how far a
# run may lie from one that shards everything: assumptions, wide.
_WAYS = {
    r"2|.*\bshard_grad_op\b.*": (
        "priced as if weights were sharded again after the forward pass, which they are not",
        0.25,
        0.4,
    ),
    r"3|.*\bno_shard\b.*": ("priced as sharded, which nothing is", 0.3, 0.6),
    r"[45]|.*\bhybrid_shard\w*.*": ("priced as sharded over all devices", 0.3, 0.4),
}
_NAMES_A_WAY = tuple(
    f"{place}{start}{name}"
    for place in ("", "fsdp_config.")
    for start in ("", "fsdp_")
    for name in ("sharding_strategy", "reshard_after_forward")
)


def _other_shards(keys: Keys) -> list[Uncounted]:
    """How FSDP is to shard, where it is not to shard everything: said, as it is not priced."""
    for name in (*_NAMES_A_WAY, "fsdp"):
        value = keys.at(name)
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value).casefold()
        if name.endswith("reshard_after_forward") and text == "false":
            text = "shard_grad_op"
        for pattern, (does, *how_far) in _WAYS.items():
            if value is not None and re.fullmatch(pattern, text.casefold()):
                return [Uncounted(name, shown(value), does, *how_far)]
    return []


# What a setting may do where it is not counted because of another one: assumptions, wide.
_OFFLOADED_SD, _COMPILED_SD = (0.25, 0.30), (0.25, 0.15)


def leave_uncounted(parsed: Parsed, devices: int, told: Collection[str] = ()) -> None:
    """Settings that are priced alone, and not beside what else the file states: they stay in it.

    The run is priced without them, and says so first.

    told: keys of the job that the user states.
    """
    _say_uncut(parsed, told)
    meaning = parsed.meaning
    _say_masters(parsed, devices)
    sharded = devices > 1 and meaning.get("sharding") not in {None, "none", "ddp"}
    if meaning.get("offload") == "activations" and sharded:
        why = f"priced without it beside {meaning['sharding']}: less memory, and slower"
        _leave(parsed, "offload", "none", Uncounted("offload", "activations", why, *_OFFLOADED_SD))
    if meaning.get("packing") == "on" and meaning.get("length_grouping") == "on":
        parsed.knobs["length_grouping"] = "off"
        why = "packed sequences have one length already: it changes nothing"
        parsed.keep("length_grouping", "length grouping", "on", why)
    if meaning.get("packing") == "on" or meaning.get("micro_batch_size") == 1:
        # Packed rows are laid end to end already; one row alone is filled up by nothing.
        parsed.uncounted = [each for each in parsed.uncounted if each.key != "padding_free"]
    filled = parsed.values.get("data", {}).get("padding") == "max_length"
    if filled and meaning.get("length_grouping") == "on":
        parsed.knobs["length_grouping"] = "off"
        why = "rows that are filled up have one length already: it changes nothing"
        parsed.keep("length_grouping", "length grouping", "on", why)
    fused = meaning.get("kernels") not in {None, "none"} and meaning.get("precision") != "fp8"
    if fused and meaning.get("compile") not in {None, "off"}:
        why = "priced without it beside fused kernels: it may be faster, and smaller"
        left = Uncounted("compile", str(meaning["compile"]), why, *_COMPILED_SD)
        _leave(parsed, "compile", "off", left)


_MASTERS_SD = (0.05, 0.10)  # an assumption: gradients in 16 bit, or summed in fp32


def keeps_masters(parsed: Parsed, devices: int) -> bool:
    """Whether DeepSpeed keeps fp32 masters on one device, where all weights are trained.

    Source: deepspeed 0.18.9 runtime/bf16_optimizer.py and zero/stage_1_and_2.py.
    """
    meaning, method = parsed.meaning, parsed.values.get("method", {})
    full = method.get("kind") == "full" and method.get("base") != "32bit"
    away = meaning.get("offload") == "optimizer"
    return devices == 1 and full and meaning.get("sharding") in ZERO_STAGE and not away


def _say_masters(parsed: Parsed, devices: int) -> None:
    if keeps_masters(parsed, devices):
        why = "on one device it keeps fp32 masters and moments as well: counted as fp32 weights"
        stage = str(parsed.meaning["sharding"])
        parsed.uncounted.append(Uncounted("deepspeed", stage, why, *_MASTERS_SD))


_CUT_NOTHING = {"hf", "swift", "torchtune", "litgpt"}  # where no length is stated


def _say_uncut(parsed: Parsed, told: Collection[str]) -> None:
    """That nothing cuts the rows, where nobody says how long they are."""
    stated = {*parsed.values.get("data", {}), *(key.split(".")[1] for key in told if "." in key)}
    known = stated & {"max_length", "dataset", "lengths"}
    known |= {each.key for each in parsed.uncounted if each.key.endswith(OWN_LENGTH)}
    if parsed.trainer in _CUT_NOTHING and not known:
        why = "nothing in the file cuts rows: longer ones than are counted take more"
        parsed.uncounted.append(Uncounted("the longest row", "not stated", why, 0.0, 0.0))


def _leave(parsed: Parsed, knob: str, counted: str, left: Uncounted) -> None:
    parsed.knobs[knob] = counted
    parsed.kept.add(knob)
    parsed.uncounted.append(left)


def _is_above(value: object, least: float | None) -> bool:
    """Whether a number says more than nothing; text and mappings always do."""
    if least is None or not re.fullmatch(r"-?[\d.]+", str(value)):
        return True
    return float(str(value).strip(".") or 0) > least


_NOT_IN_PRICE = "of the program's own, and not read: what it says is not in the price"
_UNKNOWN = "what it says may be left out of the price"
_INHERITS = "the file builds on another one, which is not read: what that says is not in the price"
_ANOTHER = "another model beside the one that is trained: its weights and work are not in the price"
_SPOKEN_SD, _UNKNOWN_SD, _INHERITED_SD = (0.30, 0.30), (0.10, 0.10), (0.40, 0.40)
_LONGEST = 30  # letters of a value in a list of several

# A file that another one completes: Hydra's, MMEngine's and people's own words for it.
_BASES = re.compile(
    r"_base_|_?(extends|includes?|inherits?(_from)?)|base_(config|cfg|yaml)|defaults"
)


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Words of a name, in the order in which they decide. Evaluation, logs and rates are of no price
# here whatever else the name says; then come words of what decides a run; then words of data.
_ASIDE = words_of("""
    eval evaluation test val valid validation dev predict generate generation gen infer inference
    log logging logs wandb mlflow swanlab tensorboard report warmup lr learning patience seed judge
    loss metric metrics score threshold beta betas eps decay dropout label labels hub push upload
    plot debug sanity preprocessing preprocess proc workers worker completion prompt compute early
    weight weights load save bias name names path dir file keep ref new beams reentrant
""")
_DECIDES = words_of("""
    accum accumulation epoch epochs batch bsz len length lengths seq lora qlora quant quantized
    quantization quantize 4bit 8bit bits kbits int8 attn attention flash offload zero checkpointing
    freeze frozen trainable layers layer parallel world gpus devices nodes context window steps
    episodes samples precision packed pack packing freezing streaming compile compiled deepspeed
    optimizer optim sharding sharded shard fsdp
""")
_OF_DATA = words_of("""
    paths files folder jsonl json parquet csv id ids url repo user token
    key keys column columns field fields split splits template chat conv conversation system role
    roles format schema style text texts input inputs output outputs response question questions
    tag tags project run group entity track tracking verbose print progress random shuffle rate
    scheduler schedule gamma tau alpha penalty coef lambda temperature top smoothing clip norm
    stopping cache overwrite resume version revision private merge host port trust remote lang
    language domain task dataset datasets data hardware vram exp experiment description comment
    metadata best check map dtype head scale method type model tokenizer checkpoint ckpt adapter
    source target trainer start end idx private instruction auth low fast slow with
    local rank master addr special responses
""")
# A second model by its name; one that scores, embeds data or is written is another matter.
_MODEL = re.compile(r"(?!base|pretrained|main|student)\w+_model(_name)?(_or)?(_path|_id|_name)?")
_APART = re.compile(
    r"(eval|judge|embed|rerank|out|save|merge|final|tokeni|hub|best|new|llm|large)\w*"
)
_EXACT = frozenset({"device_map", "low_cpu_mem_usage", "dtype", "torch_dtype", "use_auth_token"})
_SAVES = re.compile(r"(save|checkpoint\w*)_(every_?(n_)?)?(step|epoch|iter)\w*|load_in_\w*bit\w*")


def _parts(name: str) -> set[str]:
    return {word.casefold() for word in re.split(r"[^a-zA-Z0-9]+", name) if word}


def decides(name: str) -> bool | None:
    """Whether a setting of this name decides a run: None where the name says neither."""
    words = _parts(name)
    if _SAVES.fullmatch(name):
        return True
    if words & _ASIDE or name in _EXACT:
        return False
    if words & _DECIDES:
        return True
    return False if words & _OF_DATA else None


def says_off(value: object) -> bool:
    """Whether a setting of that value is as if it were not there."""
    return str(value).strip().casefold() in {*_OFF, "-1"}


def own_settings(keys: Keys, strange: list[str]) -> list[Uncounted]:
    """What is said of settings of a program's own: each that decides, then the others in one.

    Args:
        keys: the file, or the flags of a command.
        strange: keys that no version of the trainer has, and that nobody asked for.
    """
    found, unknown = [], []
    for key, value in _stated(keys, strange):
        name = key.rpartition(".")[2]
        if _BASES.fullmatch(name):
            found.append(Uncounted(key, shown(value), _INHERITS, *_INHERITED_SD))
        elif _is_model(name, value, keys):
            found.append(Uncounted(key, shown(value), _ANOTHER, *_SPOKEN_SD))
        elif says_off(value):
            continue
        elif (said := decides(name)) and not _names_a_file(value):
            found.append(Uncounted(key, shown(value), _NOT_IN_PRICE, *_SPOKEN_SD))
        elif said is None and not _is_text(value):
            unknown.append(Uncounted(key, shown(value), _UNKNOWN, *_UNKNOWN_SD))
    return [*found, *unknown]


def together(uncounted: list[Uncounted]) -> list[Uncounted]:
    """Settings of which nothing is known, in one sentence, behind what decides."""
    unknown = [each for each in uncounted if each.why == _UNKNOWN]
    if not unknown:
        return uncounted
    listed = ", ".join(f"{each.key} {each.value[:_LONGEST]}" for each in unknown)
    why = f"no arguments of the trainer's, but of a program's own: {_UNKNOWN}"
    rest = [each for each in uncounted if each.why != _UNKNOWN]
    return [*rest, Uncounted("not read", listed[:200], why, *_UNKNOWN_SD)]


def _stated(keys: Keys, strange: list[str]) -> Iterator[tuple[str, object]]:
    """Each setting, also those inside a section."""
    for key in strange:
        value = keys.at(key)
        if not isinstance(value, dict):
            yield key, value
        else:
            yield from ((f"{key}.{name}", each) for name, each in value.items())


def _is_model(name: str, value: object, keys: Keys) -> bool:
    """Whether it names another model than the one that is trained."""
    trained = {str(keys.at(word)) for word in MODEL}
    named = isinstance(value, str) and not says_off(value) and value not in trained
    return named and bool(_MODEL.fullmatch(name)) and not any(map(_APART.fullmatch, _parts(name)))


def _names_a_file(value: object) -> bool:
    return isinstance(value, str) and bool(re.search(r"[/\\]|\.\w{2,5}$", value))


def _is_text(value: object) -> bool:
    """Words that a program prints, loads or looks up; a number or a truth says how it runs."""
    several = value if isinstance(value, list) else [value]
    return isinstance(value, dict) or all(
        isinstance(each, str) and not re.fullmatch(r"-?[\d.]+(e-?\d+)?|true|yes", each.casefold())
        for each in several
    )
