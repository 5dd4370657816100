"""accelerate.yaml and run.sh: how the training script is started."""

from __future__ import annotations

import json
import math
import shlex
from typing import TYPE_CHECKING

from autotune.trainers.precision import mixed_precision
from autotune.trainers.versions import ALLOC_CONF, EXPANDABLE_SEGMENTS, OLD_ALLOC_CONF

if TYPE_CHECKING:
    from autotune.trainers.format import Plan

_DISTRIBUTED = {
    "none": "NO",
    "ddp": "MULTI_GPU",
    "fsdp": "FSDP",
    "zero2": "DEEPSPEED",
    "zero3": "DEEPSPEED",
}
_ZERO_STAGE = {"zero2": 2, "zero3": 3}


def accelerate_yaml(plan: Plan) -> str:
    """The launcher's configuration. Keys are those accelerate 1.15 reads; it refuses others."""
    settings: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _DISTRIBUTED[plan.config.sharding],
        "num_machines": 1,
        "num_processes": plan.offer.count,
        "machine_rank": 0,
        "gpu_ids": "all",  # run.sh says which are visible
        "mixed_precision": mixed_precision(plan),
        "use_cpu": plan.on_cpu,
        "main_training_function": "main",
    }
    if plan.config.sharding == "fsdp":
        settings["fsdp_config"] = _fsdp(plan)
    if plan.config.sharding in _ZERO_STAGE:
        settings["deepspeed_config"] = _deepspeed(plan)
    return "".join(_yaml_lines(settings))


def fsdp_settings(plan: Plan) -> dict[str, object]:
    """FSDP2 settings by the names that TrainingArguments.fsdp_config takes.

    Checkpoints are sharded: a full state dict gathered on a nearly full device is a known way to
    run out of memory after training has succeeded.
    """
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": not plan.quantized,
        "activation_checkpointing": plan.config.activation_checkpointing == "full",
    }


def _fsdp(plan: Plan) -> dict[str, object]:
    settings = {f"fsdp_{name}": value for name, value in fsdp_settings(plan).items()}
    return {**settings, "fsdp_offload_params": False}


def _deepspeed(plan: Plan) -> dict[str, object]:
    stage = _ZERO_STAGE[plan.config.sharding]
    return {
        "zero_stage": stage,
        "gradient_accumulation_steps": plan.config.gradient_accumulation_steps,
        "gradient_clipping": 1.0,  # TrainingArguments.max_grad_norm's default: both must agree
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": stage == _ZERO_STAGE["zero3"] and not plan.quantized,
        "zero3_save_16bit_model": stage == _ZERO_STAGE["zero3"],
    }


def _yaml_lines(settings: dict[str, object], indent: str = "") -> list[str]:
    """Block YAML whose scalars are JSON, so that "no" stays a word and is not read as false."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:\n", *_yaml_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return lines


def run_sh(plan: Plan) -> str:
    """The command, with the environment it needs and the checks worth making before paying."""
    lines = [*_header(plan), *_paths(plan), *_environment(plan), *_disk_check(plan), *_command()]
    return "\n".join(lines) + "\n"


def _header(plan: Plan) -> list[str]:
    job, config = plan.job, plan.config
    return [
        "#!/usr/bin/env bash",
        f"# {_one_line(job.name)}: {_one_line(job.model.name)} on {_one_line(plan.offer.label)}",
        (
            f"# global batch {job.global_batch_size} = micro {config.micro_batch_size}"
            f" x accumulation {config.gradient_accumulation_steps} x {plan.offer.count} device(s)"
        ),
        "#",
        "# MODEL       model id or folder",
        "# DATA        training rows, one JSON object a line",
        "# EVAL_DATA   evaluation rows; none: skip evaluation",
        "# OUTPUT_DIR  where checkpoints and the result go",
        "# MAX_STEPS   stop after that many optimizer steps (a smoke run)",
        "# RESUME      1: go on from the last checkpoint in OUTPUT_DIR",
        "# USE_CPU     1: a smoke run without accelerator: fp32, no quantisation, one process",
        "set -euo pipefail",
    ]


def _paths(plan: Plan) -> list[str]:
    lines = ["", 'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"']
    lines.append(f"export MODEL=${{MODEL:-{_default(plan.job.model.name)}}}")
    if plan.job.dataset_path:
        lines.append(f"export DATA=${{DATA:-{_default(plan.job.dataset_path)}}}")
    elif plan.trains:
        lines.append('export DATA="${DATA:?set DATA to a file with one JSON object a line}"')
    if plan.job.evaluation is not None:
        hint = "set EVAL_DATA to the evaluation rows, or to none to skip evaluation"
        lines.append(f'export EVAL_DATA="${{EVAL_DATA:?{hint}}}"')
    lines.append(f"OUTPUT_DIR=${{OUTPUT_DIR:-{_default(plan.out_dir)}}}")
    lines.append('case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac')
    lines.append("export OUTPUT_DIR")
    resume = "1" if plan.offer.spot else "0"
    lines.append(f'export RESUME="${{RESUME:-{resume}}}"')
    return lines


def _environment(plan: Plan) -> list[str]:
    lines = [""]
    if not plan.on_cpu:
        devices = ",".join(str(i) for i in range(plan.offer.count))
        lines.append("# more visible devices than these would change the global batch")
        lines.append(f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-{devices}}}"')
    if plan.config.num_dataloader_workers > 0:
        lines.append("export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock")
    lines += _allocator(plan)
    if plan.offer.count > 1:
        threads = max(1, plan.offer.host.cores // plan.offer.count)
        lines.append(f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}"')
    return lines


def _allocator(plan: Plan) -> list[str]:
    """Segments that grow instead of many that fragment, where the run fits narrowly.

    Source: PyTorch, CUDA semantics, "Optimizing memory usage": expandable_segments; issues 192330
    and 112957 for WSL2, where they fail. A variable that is set already stands.
    """
    if not plan.risk or plan.on_cpu or plan.torch < EXPANDABLE_SEGMENTS:
        return []
    if plan.offer.host.wsl:
        return [f"# segments cannot grow under WSL2, though {_one_line(plan.risk)}"]
    old = "PYTORCH_HIP_ALLOC_CONF" if plan.offer.device.vendor == "amd" else OLD_ALLOC_CONF
    name = "PYTORCH_ALLOC_CONF" if plan.torch >= ALLOC_CONF else old
    return [
        f"# segments that grow leave fewer gaps: {_one_line(plan.risk)}",
        f'export {name}="${{{name}:-expandable_segments:True}}"',
    ]


def _disk_check(plan: Plan) -> list[str]:
    lines = ["", 'mkdir -p "$OUTPUT_DIR"']
    if plan.checkpoint_bytes <= 0:
        return lines
    saves = math.ceil(plan.job.steps / max(plan.config.checkpoint_every_steps, 1))
    limit = plan.config.save_total_limit
    at_once = min(limit + 1, max(saves, 1))
    kept = f"{limit} checkpoints are kept while one more is written"
    return [
        *lines,
        f"# {kept if at_once > limit else f'all {at_once} checkpoints of the run are kept'}",
        f"need_bytes=$(( {at_once} * {math.ceil(plan.checkpoint_bytes)} ))",
        """free_bytes=$(( $(df -Pk "$OUTPUT_DIR" | awk 'NR == 2 { print $4 }') * 1024 ))""",
        "if (( free_bytes < need_bytes )); then",
        (
            '  echo "checkpoints need $need_bytes bytes in $OUTPUT_DIR, but $free_bytes are free:'
            ' free some space or set OUTPUT_DIR" >&2'
        ),
        "  exit 1",
        "fi",
    ]


def _command() -> list[str]:
    return [
        "",
        'if [[ "${USE_CPU:-0}" == 1 ]]; then',
        '  CUDA_VISIBLE_DEVICES="" exec python "$here/train.py"',
        "fi",
        'exec accelerate launch --config_file "$here/accelerate.yaml" "$here/train.py"',
    ]


def _default(text: str) -> str:
    """A word for the right side of ${NAME:-...}, whatever it holds."""
    return shlex.quote(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
