"""The part of run.sh that finds what a run needs, and says first what is missing.

Paths are those of the machine that planned the run. Where one is absent, what lies beside run.sh
under the same name stands in, so that a run folder can be taken elsewhere with its rows in it.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from autotune.domain.config import ZERO_STAGE
from autotune.domain.job import BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.trainers.contract import Plan

MODEL_COPY = "model"  # folder for the config.json of a model without weights
_FOUND = [
    "# a path where the run was planned; where it is absent, what lies beside this script",
    'found() { if [[ ! -e "$1" && -e "$here/$2" ]]; then echo "$here/$2"; else echo "$1"; fi; }',
]
_LOST = [
    "# whether a path leads to nothing; a word without a leading / or . is a name on the hub",
    'lost() { case "$1" in /* | ./* | ../*) [[ ! -e "$1" ]] ;; *) false ;; esac; }',
]
ROWS = "a file with one JSON object a line"


def start() -> list[str]:
    """How it stops, and the folder that it lies in, also behind a link to it."""
    self = '"${BASH_SOURCE[0]:-$0}"'
    return [
        'stop() { echo "run.sh: $*" >&2; exit 1; }',
        f'self="$(readlink -f -- {self} 2>/dev/null || echo {self})"',
        'here="$(CDPATH="" cd -- "$(dirname -- "$self")" && pwd)"',
    ]


def complete(files: Iterable[str]) -> list[str]:
    """Stop where one of the files that the script starts is not beside it."""
    names = [shlex.quote(name) for name in files]
    check = (
        '[[ -f "$here/$name" ]] || stop "$name is not in $here:'
        ' start run.sh in its run folder, or take the whole folder along"'
    )
    if len(names) == 1:
        return [f"name={names[0]}", check]
    return [f"for name in {' '.join(names)}; do", f"  {check}", "done"]


def inputs(plan: Plan) -> list[str]:
    """MODEL, TOKENIZER, DATA and EVAL_DATA, each found or named as what is missing."""
    own = (plan.tokenizer or "").startswith("/")
    stated = (plan.model.startswith("/"), plan.job.dataset_path, own)
    return [
        "",
        *(_FOUND if any(stated) else []),
        *_LOST,
        *_model(plan),
        *_tokenizer(plan),
        *_data(plan),
        *_evaluation(plan),
    ]


def _model(plan: Plan) -> list[str]:
    """A hub id as it is; a folder by its whole path."""
    if plan.model.startswith("/"):
        return _path("MODEL", plan.model, MODEL_COPY, "a model's folder or its id on the hub")
    wanted = "a model's folder or its id on the hub"
    return [f"export MODEL=${{MODEL:-{shlex.quote(plan.model)}}}", *_unless_lost("MODEL", wanted)]


def _tokenizer(plan: Plan) -> list[str]:
    """Where rows were counted with one of their own; else the model's."""
    if plan.tokenizer is None:
        return ['export TOKENIZER="${TOKENIZER:-$MODEL}"']
    if plan.tokenizer == BYTES:
        return [f'export TOKENIZER="${{TOKENIZER:-$here/{FOLDER}}}"  # a token is a UTF-8 byte']
    if not plan.tokenizer.startswith("/"):
        return [f"export TOKENIZER=${{TOKENIZER:-{shlex.quote(plan.tokenizer)}}}"]
    name, wanted = plan.tokenizer.rpartition("/")[2], "a tokenizer.json or a folder with one"
    return _path("TOKENIZER", plan.tokenizer, name, wanted)


def _data(plan: Plan) -> list[str]:
    path = plan.job.dataset_path
    if path:
        return _path("DATA", path, path.rpartition("/")[2], f"{ROWS}, or put it beside run.sh")
    if not plan.trains:
        return []
    missing = "DATA is not set, and the job names no data file"
    return [
        f'[[ -n "${{DATA:-}}" ]] || stop "{missing}: set DATA to {ROWS}"',
        "export DATA",
        *_unless_there("DATA", ROWS),
    ]


def _path(name: str, path: str, beside: str, wanted: str) -> list[str]:
    """A variable whose value, unless set, is a path of the machine that planned the run."""
    return [
        f'export {name}="${{{name}:-}}"',
        (f'[[ -n "${name}" ]] || {name}="$(found {shlex.quote(path)} {shlex.quote(beside)})"'),
        *(_unless_there if name == "DATA" else _unless_lost)(name, wanted),
    ]


def _unless_there(name: str, wanted: str) -> list[str]:
    return [f'[[ -e "${name}" ]] || stop "there is no ${name}: set {name} to {wanted}"']


def _unless_lost(name: str, wanted: str) -> list[str]:
    return [f'if lost "${name}"; then stop "there is no ${name}: set {name} to {wanted}"; fi']


def _evaluation(plan: Plan) -> list[str]:
    """Rows to evaluate on are never taken from those to train on: without any it is left out."""
    evaluation = plan.job.evaluation
    if evaluation is None:
        return []
    lines = ['export EVAL_DATA="${EVAL_DATA:-}"']
    if plan.trains:
        every = evaluation.every_steps
        when = f"{evaluation.rows} rows {f'every {every} steps' if every else 'at the end'}"
        lines += [
            'if [[ -z "$EVAL_DATA" ]]; then',
            "  EVAL_DATA=none",
            (
                '  echo "run.sh: EVAL_DATA is not set: training without the evaluation that the'
                f' plan counts ({when})" >&2'
            ),
            "fi",
        ]
    else:
        missing = "EVAL_DATA is not set, and this run only evaluates"
        lines.append(f'[[ -n "$EVAL_DATA" ]] || stop "{missing}: set EVAL_DATA to {ROWS}"')
    lost = f"there is no $EVAL_DATA: set EVAL_DATA to {ROWS}, or to none"
    return [*lines, f'[[ "$EVAL_DATA" == none || -e "$EVAL_DATA" ]] || stop "{lost}"']


def interpreter(plan: Plan, packages: Iterable[str]) -> list[str]:
    """A Python that has the packages: one of PATH, else the one that made the plan."""
    known = f" {shlex.quote(plan.python)}" if plan.python else ""
    return [
        "",
        "# a Python that has what training imports: of PATH, else the one that planned the run",
        f'needed="{" ".join(packages)}"',
        *_needed_on_a_gpu(plan),
        "lacks='import sys; sys.path = [p for p in sys.path if p]; from importlib import util;'",
        "lacks+=' print(*(n for n in sys.argv[1].split() if util.find_spec(n) is None))'",
        'missing_in() { "$1" -c "$lacks" "$needed" 2>/dev/null || echo "$needed"; }',
        'if [[ -z "${PYTHON:-}" ]]; then',
        f"  for PYTHON in python python3{known} python; do",
        '    [[ -n "$(missing_in "$PYTHON")" ]] || break',
        "  done",
        "fi",
        'command -v "$PYTHON" > /dev/null || stop "there is no $PYTHON: set PYTHON to another"',
        'missing="$(missing_in "$PYTHON")"',
        (
            '[[ -z "$missing" ]] || stop "$PYTHON lacks $missing:'
            ' $PYTHON -m pip install $missing, or set PYTHON to one that has them"'
        ),
    ]


def _needed_on_a_gpu(plan: Plan) -> list[str]:
    names = [
        *(["bitsandbytes"] if plan.quantized or "8bit" in plan.config.optimizer else []),
        *(["deepspeed"] if plan.config.sharding in ZERO_STAGE else []),
        *(["liger_kernel"] if plan.config.kernels == "liger" else []),
        *(["torchao"] if plan.config.precision == "fp8" else []),
    ]
    if not names:
        return []
    return [f'[[ "${{USE_CPU:-0}}" == 1 ]] || needed+=" {" ".join(names)}"']


def plain_name(text: str) -> str:
    """A name that is safe in a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:48] or "job"


FOLDER = "tokenizer"
_EACH_BYTE = 256
PAD = "<|padding|>"  # in no row: a row that held it would be one token there
BEFORE, AFTER = "\x02", "\x03"  # ASCII's marks for the start and the end of a text
CHAT = (
    "{% for message in messages %}"
    "{% if not loop.first %}{{ '\n' }}{% endif %}"
    f"{{{{ '{BEFORE}' + message['role'] + '\n' + (message['content'] or '') + '{AFTER}' }}}}"
    "{% endfor %}"
)


def byte_tokenizer(vocab_size: int) -> dict[str, str]:
    """The texts of tokenizer.json and tokenizer_config.json, by their names in a run folder.

    vocab_size: of the model; where it has more than the bytes, the next token is for padding.
    """
    padded = vocab_size > _EACH_BYTE
    token = {
        "id": _EACH_BYTE, "content": PAD, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token] if padded else [],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": False},
        "post_processor": None,
        "decoder": level | {"use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": _vocabulary(), "merges": [],
        },
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**9,
        "chat_template": CHAT,
        **({"pad_token": PAD} if padded else {}),
    }
    return {
        f"{FOLDER}/tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n",
        f"{FOLDER}/tokenizer_config.json": json.dumps(settings, indent=1) + "\n",
    }


def _vocabulary() -> dict[str, int]:
    """Every byte by the character that stands for it: printable ones for themselves.

    Source: bytes_to_unicode in encoder.py of openai/gpt-2, which byte-level BPE goes by.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(_EACH_BYTE) if byte not in printable)
    stands = {byte: chr(byte) for byte in printable}
    stands |= {byte: chr(_EACH_BYTE + n) for n, byte in enumerate(others)}
    return {stands[byte]: byte for byte in range(_EACH_BYTE)}
