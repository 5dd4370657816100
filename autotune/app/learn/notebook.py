"""An executed notebook: the Trainer's result in its outputs, the arguments in its code.

Outputs are text: `TrainOutput(global_step=60, ..., metrics={'train_runtime': ...})`, the progress
bar, the name of the GPU where a cell printed it. Arguments are read from the source as literals
(`per_device_train_batch_size=2`); nothing of it runs.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from autotune.app.learn.found import Found, results_in, whole
from autotune.app.learn.walk import Unreadable, read_json, read_mapping
from autotune.evidence.log.console import read_printed
from autotune.evidence.log.text import figure_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = "notebook"
SEVERAL = "two trainings in one notebook: the last one is read"
MOST_CELLS, MOST_TEXT = 2_000, 5_000_000
_RESULT = re.compile(
    r"TrainOutput\(global_step=(\d{1,9}).{0,200}?metrics=\{(.{1,1000}?)\}", re.DOTALL
)
_METRIC = re.compile(r"'(\w+)': ([-+\d.e]+)")
_GPU = (
    re.compile(r"\|\s+\d+\s+((?:NVIDIA|Tesla|Quadro|GeForce|RTX)[\w .-]*?)\s+(?:On|Off)\b"),
    re.compile(r"GPU = ((?:NVIDIA|Tesla)[\w .-]*)\. Max memory"),
    re.compile(r"\b((?:NVIDIA|Tesla) [\w -]*?[A-Z]+\d+[\w -]*)"),
)
_MEMORY = re.compile(r"Max memory[ =:]*([\d.]+) ?GB")
_NAMED = ("LoraConfig", "TrainingArguments", "SFTConfig", "BitsAndBytesConfig", "get_peft_model",
          "from_pretrained", "SFTTrainer", "Trainer", "LlamaConfig")  # fmt: skip


def read(path: Path) -> Found:
    """What the notebook says of its last training. Raises Unreadable where it trained nothing."""
    content = read_json(path)
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        msg = "not a notebook"
        raise Unreadable(msg)
    source, printed = _texts(cells[:MOST_CELLS])
    ends = list(_RESULT.finditer(printed))
    bars = read_printed(printed)
    if not ends and not bars.says_something:
        msg = "a notebook whose outputs hold no training"
        raise Unreadable(msg)
    told = dict(_METRIC.findall(ends[-1][2])) if ends else {}
    calls = _calls(source)
    arguments = {**calls.get("TrainingArguments", {}), **calls.get("SFTConfig", {})}
    adapter = {**calls.get("LoraConfig", {}), **calls.get("get_peft_model", {})}
    loading = calls.get("from_pretrained", {})
    gpu, size = _gpu(printed)
    named = _model_name(loading, source)
    return Found(
        source=SOURCE,
        place=path,
        trainer="unsloth" if "unsloth" in source else "trl" if "SFTConfig" in calls else "hf",
        arguments={**loading, **calls.get("BitsAndBytesConfig", {}), **calls.get("SFTTrainer", {}),
                   **arguments},
        model_name=named,
        model=_shape(calls, path.parent / named if named else None),
        adapter={**adapter, "peft_type": "LORA"} if "r" in adapter else {},
        results=results_in(told, bars.results),
        log=bars.log(str(path)),
        steps=whole(ends[-1][1]) if ends else bars.steps,
        gpu=gpu,
        gpu_bytes=size,
        on_cpu=arguments.get("use_cpu") is True,
        clock=bars.jumped,
        notes=(*bars.notes, *([SEVERAL] if len(ends) > 1 else [])),
    )  # fmt: skip


def _texts(cells: list[Any]) -> tuple[str, str]:
    """(source, outputs) as plain text."""
    source, printed = [], []
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source.append(_joined(cell.get("source")))
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else []:
            if isinstance(output, dict):
                data = output.get("data")
                held = data.get("text/plain") if isinstance(data, dict) else None
                printed += [_joined(output.get("text")), _joined(held)]
    return "\n".join(source)[:MOST_TEXT], "\n".join(printed)[:MOST_TEXT]


def _joined(text: Any) -> str:  # noqa: ANN401 - a notebook's text or list of lines
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


def _gpu(printed: str) -> tuple[str, float]:
    size = figure_of(found[1]) if (found := _MEMORY.search(printed)) else None
    for pattern in _GPU:
        if name := pattern.search(printed):
            return name[1].strip(), (size or 0.0) * 2**30
    return "", 0.0


def _calls(source: str) -> dict[str, dict[str, Any]]:
    """Literal arguments of the calls that matter, the last of each; cells with magics lose them."""
    found: dict[str, dict[str, Any]] = {}
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    names = _assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _called(node)) in _NAMED:
            held = {}
            for keyword in node.keywords:
                value = _literal(keyword.value, names)
                if keyword.arg and value is not None:
                    held[keyword.arg] = value
            if name == "from_pretrained" and node.args:
                first = _literal(node.args[0], names)
                held.setdefault("model_name", first)
            found[name] = {**found.get(name, {}), **held}
    return found


def _called(node: ast.Call) -> str:
    target = node.func
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def _assigned(tree: ast.AST) -> dict[str, Any]:
    """Names that one literal was assigned to."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and (value := _literal(node.value, {})) is not None:
                found[target.id] = value
    return found


def _literal(node: ast.AST, names: dict[str, Any]) -> Any:  # noqa: ANN401 - any literal
    if isinstance(node, ast.Name):
        return names.get(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _model_name(loading: dict[str, Any], source: str) -> str:
    name = loading.get("model_name") or loading.get("pretrained_model_name_or_path")
    if isinstance(name, str):
        return name
    found = re.search(r"model_(?:name|id)\w*\s*=\s*[\"']([\w./-]+)[\"']", source)
    return found[1] if found else ""


def _shape(calls: dict[str, dict[str, Any]], folder: Path | None) -> dict[str, Any]:
    """The model's config: as the notebook makes it, or of a folder that is still there."""
    if own := calls.get("LlamaConfig"):
        return {"model_type": "llama", **own}
    try:
        return read_mapping(folder / "config.json") if folder else {}
    except Unreadable:
        return {}


def iter_notebooks(names: frozenset[str]) -> Iterator[str]:
    """Notebooks among names."""
    return (name for name in sorted(names) if name.endswith(".ipynb"))
