"""prepare.py makes the tokens that the trainers themselves make of the same rows."""

from __future__ import annotations

import csv
import gzip
import io
import json
import runpy
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import LORA, config, job, offer, with_base

from autotune.app.dataset.count import count_dataset
from autotune.app.runs.export import export, write_export

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SHORT = "one two three"
ROWS: dict[str, list[dict[str, Any]]] = {
    "text": [{"text": SHORT}, {"text": "red green </s>"}, {"text": "blue " * 90}],
    "prompt": [
        {"prompt": "one two ", "completion": "three"},
        {"prompt": "red " * 30, "completion": "blue " * 30},
    ],
    "messages": [
        {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]},
    ],
    "chat prompt": [
        {
            "prompt": [{"role": "user", "content": "one two"}],
            "completion": [{"role": "assistant", "content": "three red"}],
        }
    ],
}


def prepared(
    target: str, rows: list[dict[str, Any]], model: Path, folder: Path, **changes: Any
) -> Any:
    """The data set that prepare.py writes."""
    datasets = pytest.importorskip("datasets")
    named = {"dataset_path": str(folder / "rows.jsonl"), **changes}
    cpu = job(with_base(LORA, "32bit"), **named)
    write_export(export(target, cpu, offer(cpu=True), config(precision="fp32")), folder)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL", str(model))
        patch.setenv("PREPARED", str(folder))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(folder / "hf"))
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        runpy.run_path(str(folder / "prepare.py"), run_name="__main__")
    return datasets.load_from_disk(str(folder / "train"))


@pytest.mark.parametrize("kind", ROWS)
def test_trl_would_have_made_the_same_tokens(
    kind: str, model_and_data: Path, tmp_path: Path
) -> None:
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    model = model_and_data / "model"
    ours = prepared("trl", ROWS[kind], model, tmp_path)
    arguments: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"), "max_length": 48, "use_cpu": True, "bf16": False,
        "report_to": "none", "activation_checkpointing": False, "shuffle_dataset": False,
    }  # fmt: skip

    def rows_of(dataset: Any, **more: Any) -> list[tuple[list[int], list[int]]]:
        args = trl.SFTConfig(**arguments, **more)
        trainer = trl.SFTTrainer(str(model), args=args, train_dataset=dataset)
        return [(row["input_ids"], row["labels"]) for row in trainer.train_dataset]

    masked = {"completion_only_loss": True} if "completion_mask" in ours.column_names else {}
    assert ("prompt" in kind) is bool(masked)
    assert rows_of(ours, **masked) == rows_of(datasets.Dataset.from_list(ROWS[kind]))


def test_what_lies_there_is_used_again_until_the_rows_change(
    model_and_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_and_data / "model"
    first = prepared("hf", ROWS["text"], model, tmp_path)
    assert [len(row) for row in first["input_ids"]] == [4, 3, 48]
    assert first["length"][:] == [4, 3, 48]
    (tmp_path / "rows.jsonl").touch()
    prepared("hf", ROWS["text"][:2], model, tmp_path)
    assert "already" not in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        quiet = ("TOKENIZERS_PARALLELISM", "false")
        for name, value in (("MODEL", model), ("PREPARED", tmp_path), quiet):
            patch.setenv(name, str(value))
        runpy.run_path(str(tmp_path / "prepare.py"), run_name="__main__")
    assert "holds the tokens" in capsys.readouterr().out


def test_a_row_of_an_unknown_kind_says_which_kinds_there_are(
    model_and_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"one has \['bar', 'foo'\]"):
        prepared("hf", [{"foo": "a", "bar": "b"}], model_and_data / "model", tmp_path)


@pytest.mark.parametrize("kind", ["rows.json", "rows.csv", "rows.tsv", "rows.parquet", "folder"])
def test_every_kind_of_file_that_is_counted_is_tokenised(
    kind: str, model_and_data: Path, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"body": "one two", "id": 1}, {"body": "three red", "id": 2}]
    path = tmp_path / "data" / kind
    path.parent.mkdir()
    if kind == "rows.json":
        path.write_text(json.dumps(rows))
    elif kind == "rows.parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif kind == "folder":
        path.mkdir()
        (path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (path / "test.jsonl").write_text(json.dumps({"body": "no", "id": 3}))
    else:
        between = "," if kind == "rows.csv" else "\t"
        lines = [f"{row['body']}{between}{row['id']}" for row in rows]
        path.write_text("\n".join([f"body{between}id", *lines]) + "\n")
    spec = json.dumps({"data": {"dataset": str(path), "column": "body"}})
    found = prepared(
        "hf", [], model_and_data / "model", tmp_path, dataset_path=str(path), spec=spec
    )
    texts = [{"text": row["body"]} for row in rows]
    assert (
        found["input_ids"][:]
        == prepared("hf", texts, model_and_data / "model", tmp_path)["input_ids"][:]
    )


def test_instructions_and_sharegpt_turns_are_trained_on_as_they_are_counted(
    model_and_data: Path, tmp_path: Path
) -> None:
    model = model_and_data / "model"
    rows = {
        "instruction": {"instruction": "one two", "input": "", "output": "three red"},
        "turns": {
            "conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}]
        },
    }
    asked = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three red"}]
    alike = {"instruction": {"messages": asked}, "turns": ROWS["messages"][0]}
    for name, row in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / f"{name} alike").mkdir()
        own = prepared("hf", [row], model, tmp_path / name)["input_ids"][:]
        assert (
            own == prepared("hf", [alike[name]], model, tmp_path / f"{name} alike")["input_ids"][:]
        )


def csv_text(rows: list[dict[str, str]], separator: str) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


ANSWERED = [
    {"instruction": "one two", "input": "", "output": "three, red"},
    {"instruction": "one", "input": "blue 'green'", "output": "two\nthree"},
]
OTHERS: dict[str, tuple[Any, str | None]] = {
    "pairs.jsonl": ("".join(json.dumps(row) + "\n" for row in ANSWERED), None),
    "pairs.json": (json.dumps(ANSWERED, indent=1), None),
    "pairs.csv": (csv_text(ANSWERED, ","), None),
    "semicolons.csv": (csv_text(ANSWERED, ";"), None),
    "pairs.tsv": (csv_text(ANSWERED, "\t"), None),
    "pairs.csv.gz": (gzip.compress(csv_text(ANSWERED, ",").encode()), None),
    "column.csv": (csv_text(ANSWERED, ","), "output"),
    "columns.jsonl": ("".join(json.dumps(row) + "\n" for row in ANSWERED), "output,instruction"),
    "numbers.csv": ("instruction,output\none,2\ntwo,\n", None),
    "lines.txt": ("one two\nthree red green\n", None),
    "turns.jsonl": (json.dumps({"log": [{"from": "human", "value": "one"}]}) + "\n", "log"),
    "questions.jsonl": (json.dumps({"question": "one", "answer": "two"}) + "\n", None),
    "pairs.parquet": (ANSWERED, None),
    "folder": (ANSWERED, None),
    "saved": (ANSWERED, None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_counted_is_what_is_trained_on(
    name: str, model_and_data: Path, tmp_path: Path
) -> None:
    content, column = OTHERS[name]
    path = tmp_path / "in" / name
    path.parent.mkdir()
    if isinstance(content, list):
        if name == "folder":
            (path / "data").mkdir(parents=True)
        file = path / "data" / "train-00000.parquet" if name == "folder" else path
        rows = pytest.importorskip("datasets").Dataset.from_list(content)
        if name == "saved":
            rows.save_to_disk(str(path))
        else:
            rows.to_parquet(str(file))
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    model = model_and_data / "model"
    spec = json.dumps({"data": {"column": column, "tokenizer": str(model)}})
    rows = prepared("trl", [], model, tmp_path, dataset_path=str(path), spec=spec)
    counted = count_dataset(path, str(model), column=column).histogram
    assert sorted(rows["length"]) == sorted(Counter(counted.counts).elements())
