"""run.sh: what the plan counted on, in its order: inputs, staging, tokenising, launch."""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import TYPE_CHECKING

from autotune.catalog.software import REQUIRED
from autotune.domain.job import BYTES
from autotune.domain.objective import PAIRED
from autotune.domain.units import format_seconds
from autotune.trainers.hf.launch import own_environment
from autotune.trainers.launch.run_inputs import (
    MODEL_COPY,
    byte_tokenizer,
    complete,
    inputs,
    interpreter,
    plain_name,
    start,
)
from autotune.trainers.versions import ALLOC_CONF, EXPANDABLE_SEGMENTS, OLD_ALLOC_CONF

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.trainers.contract import Plan, Trainer

_HELP = {
    "MODEL": "model id or folder",
    "TOKENIZER": "tokenizer, if it is not the model's",
    "DATA": "training rows, one JSON object a line",
    "EVAL_DATA": "evaluation rows; left out or none: no evaluation",
    "OUTPUT_DIR": "where checkpoints and the result go",
    "LOCAL_DIR": "a folder on the machine's own disk, for copied and tokenised rows",
    "STAGE": "1: copy the rows there first; 0: read them where they lie",
    "PREPARE": "1: tokenise first; only: stop after that (needs no GPU); 0: do not",
    "MAX_STEPS": "stop after that many optimizer steps (a smoke run)",
    "RESUME": "1: go on from the last checkpoint in OUTPUT_DIR",
    "USE_CPU": "1: a smoke run without accelerator: fp32, no quantisation, one process",
    "PYTHON": "the interpreter",
}


def prepares(plan: Plan) -> bool:
    """Whether rows are tokenised before the launch; TRL's trainers of preferences do it after."""
    return counts_preparing(plan) and plan.job.objective not in PAIRED


def counts_preparing(plan: Plan) -> bool:
    """Whether rows still have to be tokenised, which the bill's `prepare` part counts."""
    return plan.trains and not plan.job.pretokenized


def run_sh(plan: Plan, files: Iterable[str], packages: Iterable[str]) -> str:
    """The script that starts a train.py of ours, with the checks worth making before paying.

    files: what lies beside it and is needed; packages: what its train.py imports beside
    transformers.
    """
    lines = [
        *_header(plan, _settings(plan)),
        'export RUN_BEGAN="${EPOCHREALTIME:-}"  # [s] train.py records what passes before a step',
        "",
        *start(),
        *complete(files),
        *inputs(plan),
        *_places(plan),
        *interpreter(plan, dict.fromkeys((*REQUIRED, *packages, *_for_preparing(plan)))),
        *_environment(plan),
        *_disk_check(plan),
        *_staging(plan),
        *_preparing(plan),
        *_command(plan),
    ]
    return "\n".join(lines) + "\n"


def input_files(plan: Plan) -> dict[str, str]:
    """What a run needs and the machine may not have: a byte tokenizer, a config without weights."""
    files = byte_tokenizer(plan.job.model.vocab_size) if plan.tokenizer == BYTES else {}
    if plan.from_scratch:
        fields = json.dumps(json.loads(plan.job.model.hf_config), indent=1)
        files[f"{MODEL_COPY}/config.json"] = fields + "\n"
    return files


def _for_preparing(plan: Plan) -> tuple[str, ...]:
    return ("datasets",) if prepares(plan) else ()


def started_by(typed: str, config: str) -> str:
    """A command that a launcher or python starts, with accelerate in its place; empty if unknown.

    config: accelerate's flag for its config.
    """
    from autotune.trainers.syntax.command_line import parse_command

    command = parse_command(typed)
    script = command.program[-1] if command.program else ""
    launcher = command.program[0].rpartition("/")[2] if command.program else ""
    plain = re.fullmatch(r"torchrun|deepspeed|python[\d.]*", launcher) and script.endswith(".py")
    if not plain or typed.count(script) != 1:
        return ""
    before, _, after = typed.partition(script)
    begin = before[: before.index(command.program[0])]  # NAME=VALUE in front of it
    return f"{begin}accelerate launch {config}{script}{after}"


def file_and_start(trainer: Trainer, plan: Plan, text: str, launcher: str = "") -> dict[str, str]:
    """A trainer's own file as it is written from nothing, and the run.sh beside it."""
    commands = trainer.commands(plan, trainer.file, launcher)
    return {trainer.file: text, "run.sh": trainer_sh(plan, commands, [trainer.file])}


def trainer_sh(
    plan: Plan, commands: Sequence[str], files: Sequence[str], begin: str | None = None
) -> str:
    """The script that runs a trainer's own commands, of which the last one stays.

    files: what lies beside it and is needed. begin: the folder that relative paths start in, empty
    for the one that it is called in; None: its own.
    """
    *first, last = commands
    if begin is None:
        place = ['cd -- "$here"']
    else:
        folder = shlex.quote(begin)
        where = f"if [[ -d {folder} ]]; then cd -- {folder}; fi  # where relative paths start"
        place = [where] if begin else []
    needed = [*start(), *complete(files)] if files else []
    lines = [
        *_header(plan, {}),
        *(["", *needed, *place] if files or place else []),
        *_environment(plan),
        "",
        *first,
        f"exec {last}" if re.fullmatch(r"[\w.-]+ [^;&|\n]*", last) else last,
    ]
    return "\n".join(lines) + "\n"


def _settings(plan: Plan) -> dict[str, str]:
    """The variables that this script reads, with what they mean."""
    unread = set()
    if plan.job.storage != "network":
        unread.add("STAGE")
    if not prepares(plan):
        unread.add("PREPARE")
    if {"STAGE", "PREPARE"} <= unread:
        unread.add("LOCAL_DIR")
    return {name: text for name, text in _HELP.items() if name not in unread}


def _header(plan: Plan, settings: dict[str, str]) -> list[str]:
    job, config = plan.job, plan.config
    session_s = job.limits.max_session_s
    width = max((len(name) for name in settings), default=0)
    return [
        "#!/usr/bin/env bash",
        f"# {_one_line(job.name)}: {_one_line(job.model.name)} on {_one_line(plan.offer.label)}",
        (
            f"# global batch {job.global_batch_size} = micro {config.micro_batch_size}"
            f" x accumulation {config.gradient_accumulation_steps} x {plan.offer.count} device(s)"
        ),
        *(
            [f"# sessions end after {format_seconds(session_s)}: start it again, and it goes on"]
            if session_s and settings
            else []
        ),
        *(["#"] if settings else []),
        *(f"# {name:<{width}}  {text}" for name, text in settings.items()),
        "set -euo pipefail",
    ]


def _places(plan: Plan) -> list[str]:
    """Where results and tokens go. Rows that lie on the network need a disk of the machine's."""
    lines = [
        "",
        f"OUTPUT_DIR=${{OUTPUT_DIR:-{shlex.quote(plan.out_dir)}}}",
        'case "$OUTPUT_DIR" in /*) ;; *) OUTPUT_DIR="$here/$OUTPUT_DIR" ;; esac',
        "export OUTPUT_DIR",
    ]
    if "LOCAL_DIR" in _settings(plan):
        if plan.job.storage == "network":
            name = f'{plain_name(plan.job.name)}-$(cksum <<< "$here" | cut -d" " -f1)'
            lines += [
                'own="${TMPDIR:-/tmp}/autotune-$(id -u)" LOCAL_DIR="${LOCAL_DIR:-}"',
                'if [[ -z "$LOCAL_DIR" ]]; then',
                '  (umask 077 && mkdir -p -- "$own")',
                (
                    '  [[ -O "$own" && ! -L "$own" ]] ||'
                    ' stop "$own is not a folder of yours: set LOCAL_DIR"'
                ),
                '  chmod 700 -- "$own"  # rows that are copied there are nobody else\'s',
                f'  LOCAL_DIR="$own/{name}"',
                "fi",
            ]
        else:
            own = "tokens-${NODE_RANK:-${SLURM_NODEID:-0}}" if plan.offer.nodes > 1 else "tokens"
            lines.append(f'LOCAL_DIR="${{LOCAL_DIR:-$here/{own}}}"')
    lines.append(f'export RESUME="${{RESUME:-{int(plan.may_be_interrupted)}}}"')
    return lines


def _environment(plan: Plan) -> list[str]:
    lines = [""]
    if not plan.on_cpu:
        devices = ",".join(str(i) for i in range(plan.offer.per_node))
        lines.append("# more visible devices than these would change the global batch")
        lines.append(f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-{devices}}}"')
    if plan.config.num_dataloader_workers > 0:
        lines.append("export TOKENIZERS_PARALLELISM=false  # tokenizer threads and forks deadlock")
    lines += _allocator(plan)
    if plan.offer.count > 1:
        threads = max(1, plan.offer.host.cores // plan.offer.per_node)
        lines.append(f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}"')
    lines += own_environment(plan)
    lines += _machines(plan)
    return lines if len(lines) > 1 else []


def _machines(plan: Plan) -> list[str]:
    """Which of several machines this is, and where they meet."""
    nodes = plan.offer.nodes
    if nodes == 1:
        return []
    asked = f"{nodes} machines train together: start this on each, with the same MASTER_ADDR"
    return [
        f"# {asked}",
        "# (an address of the first) and its own NODE_RANK; Slurm's srun says the rank itself",
        'export NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-}}" MASTER_PORT="${MASTER_PORT:-29500}"',
        (
            f'if [[ ! "$NODE_RANK" =~ ^[0-9]+$ ]] || (( NODE_RANK >= {nodes} ))'
            ' || [[ -z "${MASTER_ADDR:-}" ]]; then'
        ),
        f'  echo "run.sh: {asked} and NODE_RANK=0 to {nodes - 1}" >&2',
        "  exit 1",
        "fi",
        "export MASTER_ADDR",
    ]


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
    """Whether what the run writes has room; what lies there of an earlier start is replaced."""
    lines = ["", 'mkdir -p "$OUTPUT_DIR"']
    if plan.disk.total_bytes <= 0:
        return lines
    there = """{ du -skc "$OUTPUT_DIR"/checkpoint-* "$OUTPUT_DIR/final" 2>/dev/null || true; }"""
    return [
        *lines,
        f"# at once: {plan.disk.words}",
        f"need_bytes={math.ceil(plan.disk.total_bytes)}",
        f"""written_kb=$({there} | awk 'END {{ print $1 + 0 }}')""",
        """free_kb=$(df -Pk "$OUTPUT_DIR" | awk 'NR == 2 { print $4 }')""",
        "room_bytes=$(( (free_kb + written_kb) * 1024 ))  # with what an earlier start wrote",
        "if (( room_bytes < need_bytes )); then",
        (
            f'  stop "{plan.disk.words} take $need_bytes bytes of $OUTPUT_DIR, and there is room'
            ' for $room_bytes: free some or set OUTPUT_DIR"'
        ),
        "fi",
    ]


def _staging(plan: Plan) -> list[str]:
    """One copy of the rows onto the machine's own disk, where they lie on the network.

    Rows that still have to be tokenised are read from the network once in the bill, which is this
    copy. Ready ones were counted as read over the network in every epoch: copying is an offer.
    """
    if plan.job.storage != "network" or not plan.trains:
        return []
    counted = counts_preparing(plan)
    return [
        "",
        "# the rows lie on the network: one copy onto this machine's disk, "
        + ("as it was counted" if counted else "which was not counted, if STAGE is 1"),
        f'if [[ "${{STAGE:-{int(counted)}}}" == 1 && -e "$DATA" ]]; then',
        '  mkdir -p "$LOCAL_DIR"',
        (
            """  staged="$LOCAL_DIR/$(printf %s "$DATA" | cksum | cut -d" " -f1)"""
            '''-$(basename -- "$DATA")"'''
        ),
        '  if [[ ! -e "$staged" || "$DATA" -nt "$staged" ]]; then',
        '    need_kb="$(du -skL -- "$DATA" | cut -f1)"',
        """    free_kb="$(df -Pk "$LOCAL_DIR" | awk 'NR == 2 { print $4 }')\"""",
        "    if (( free_kb < need_kb )); then",
        (
            '      stop "$DATA takes $need_kb KiB in $LOCAL_DIR, but $free_kb are free:'
            ' set LOCAL_DIR, or STAGE=0"'
        ),
        "    fi",
        '    echo "copying $DATA to $LOCAL_DIR" >&2',
        '    rm -rf -- "$staged" "$staged.part"',
        '    cp -RL -- "$DATA" "$staged.part"',
        '    touch -- "$staged.part"',
        '    mv -- "$staged.part" "$staged"',
        "  fi",
        '  export DATA="$staged"',
        "fi",
    ]


def _preparing(plan: Plan) -> list[str]:
    """Tokenise once, in all the cores and before any GPU is touched, as the bill has it."""
    if not prepares(plan):
        return []
    evaluated = '  if [[ "$EVAL_DATA" != none ]]; then export EVAL_DATA="$LOCAL_DIR/eval"; fi'
    return [
        "",
        "# every row is tokenised once, before the first step, as it was counted",
        'if [[ "${PREPARE:-1}" != 0 ]]; then',
        '  mkdir -p "$LOCAL_DIR"',
        '  export PREPARE_BEGAN="${EPOCHREALTIME:-}"',
        '  CUDA_VISIBLE_DEVICES="" PREPARED="$LOCAL_DIR" "$PYTHON" "$here/prepare.py"',
        '  export PREPARE_ENDED="${EPOCHREALTIME:-}"',
        '  if [[ "${PREPARE:-1}" == only ]]; then exit 0; fi',
        '  export DATA="$LOCAL_DIR/train"',
        *([evaluated] if plan.job.evaluation is not None else []),
        "fi",
    ]


def _command(plan: Plan) -> list[str]:
    config = '--config_file "$here/accelerate.yaml"'
    if plan.offer.nodes > 1:
        config += ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"'
        config += ' --main_process_port "$MASTER_PORT"'
    return [
        "",
        'if [[ "${USE_CPU:-0}" == 1 ]]; then',
        '  CUDA_VISIBLE_DEVICES="" exec "$PYTHON" "$here/train.py"',
        "fi",
        "# accelerate launch, in that Python",
        "launch='import sys; sys.path = [p for p in sys.path if p];'",
        "launch+=' from accelerate.commands.launch import main; main()'",
        f'exec "$PYTHON" -c "$launch" {config} "$here/train.py"',
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())
