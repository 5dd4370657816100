"""Data sets as people have them: each format counts the same, bad ones say what to do."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from builders import count_rows
from rights import of_an_ordinary_user

from autotune.app.dataset import TOLD
from autotune.app.dataset.columns import LONGER
from autotune.app.dataset.count import count_dataset
from autotune.app.dataset.files import Reading
from autotune.app.dataset.report import dataset_histogram
from autotune.app.job.load import jobs_of_line, load_job
from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.domain.job import Job

ROWS: list[dict[str, Any]] = [{"text": "x" * (1 + i % 17)} for i in range(300)]
COUNTS = dict(Counter(len(row["text"]) for row in ROWS))
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi there"}]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def parquet(path: Path, rows: list[dict[str, Any]], group: int = 50) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as module

    module.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)


def table(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(["number", *rows[0]])
        writer.writerows([i, *row.values()] for i, row in enumerate(rows))


def zstd(path: Path, rows: list[dict[str, Any]]) -> None:
    pa = pytest.importorskip("pyarrow")
    with pa.OSFile(str(path), "wb") as raw, pa.CompressedOutputStream(raw, "zstd") as stream:
        stream.write(lines(rows).encode())


def arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    pa = pytest.importorskip("pyarrow")
    whole = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_stream(raw, whole.schema) as stream:
        stream.write_table(whole, max_chunksize=100)


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.jsonl": lambda p: p.write_text(lines(ROWS)),
    "lines.json": lambda p: p.write_text(lines(ROWS)),
    "bom.jsonl": lambda p: p.write_text("\ufeff" + lines(ROWS), encoding="utf-8"),
    "crlf.jsonl": lambda p: p.write_bytes(lines(ROWS).replace("\n", "\r\n").encode()),
    "array.json": lambda p: p.write_text(json.dumps(ROWS)),
    "indented.json": lambda p: p.write_text(json.dumps(ROWS, indent=2)),
    "no_name_at_all": lambda p: p.write_text(lines(ROWS)),
    "a.csv": lambda p: table(p, ROWS),
    "semicolons.csv": lambda p: table(p, ROWS, ";"),
    "a.tsv": lambda p: table(p, ROWS, "\t"),
    "a.txt": lambda p: p.write_text("\n\n".join(r["text"] for r in ROWS)),
    "a.jsonl.gz": lambda p: p.write_bytes(gzip.compress(lines(ROWS).encode())),
    "a.json.bz2": lambda p: p.write_bytes(bz2.compress(json.dumps(ROWS).encode())),
    "a.jsonl.xz": lambda p: p.write_bytes(lzma.compress(lines(ROWS).encode())),
    "a.jsonl.zst": lambda p: zstd(p, ROWS),
    "a.parquet": lambda p: parquet(p, ROWS),
    "a.arrow": lambda p: arrow(p, ROWS),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_rows_count_the_same_in_every_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    found = count_rows(path)
    assert dict(found.counts) == COUNTS
    assert (found.basis, found.log_sd, found.all_rows) == ("counted", 0.0, 0)
    if name != "a.arrow":
        assert found.row_bytes > 0


def test_fields_with_commas_quotes_and_line_ends_are_one_field_each(tmp_path: Path) -> None:
    rows = [{"question": 'a, "b"\nc', "answer": "d"}] * 3
    table(tmp_path / "a.csv", rows)
    assert dict(count_rows(tmp_path / "a.csv").counts) == {len('a, "b"\nc\nd'): 3}


def test_nested_columns_of_parquet_are_chats(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [{"messages": CHAT}] * 5)
    (tmp_path / "a.jsonl").write_text(lines([{"messages": CHAT}] * 5))
    assert count_rows(tmp_path / "a.parquet").counts == count_rows(tmp_path / "a.jsonl").counts


def test_a_folder_is_its_training_split(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("---\n")
    (tmp_path / "dataset_infos.json").write_text("{}")
    for name, rows in (("train-0", 3), ("train-1", 4), ("test-0", 50), ("validation-0", 50)):
        (tmp_path / "data" / f"{name}.jsonl").write_text(lines(ROWS[:rows]))
    count = count_dataset(tmp_path, "bytes")
    assert [path.name for path in count.files] == ["train-0.jsonl", "train-1.jsonl"]
    assert count.histogram.rows == 7
    assert count.path == tmp_path


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    assert dict(count_rows(tmp_path / "saved").counts) == COUNTS


def test_a_folder_of_two_formats_asks_which_is_meant(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(lines(ROWS))
    table(tmp_path / "two.csv", ROWS)
    with pytest.raises(InputError, match=r"2 formats: one.jsonl, two.csv"):
        count_rows(tmp_path)


def test_a_data_set_of_the_hubs_cache_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "datasets--someone--rows" / "snapshots" / "abc"
    (snapshot / "data").mkdir(parents=True)
    (snapshot / "data" / "train.jsonl").write_text(lines(ROWS))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    count = count_dataset(tmp_path / "someone" / "rows", "bytes")
    assert dict(count.histogram.counts) == COUNTS
    assert count.path == snapshot / "data" / "train.jsonl"
    with pytest.raises(InputError, match="someone/others is no file here") as caught:
        count_dataset(tmp_path / "someone" / "others", "bytes")
    assert "hf download someone/others --repo-type dataset" in str(caught.value.hint)
    assert "data.lengths" in str(caught.value.hint)


# --- columns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ({"question": "how", "answer": "so"}, 6),
        ({"instruction": "do", "input": None, "response": "ok"}, 5),
        ({"instruction": "do", "context": "it", "output": ""}, 5),
        ({"query": "a", "response": "b"}, 3),
        ({"messages": json.dumps(CHAT)}, 4 + 1 + 5 + 1 + 9 + 1 + 8 + 2 * 2),
        ({"conversation": [{"from": "human", "value": "a"}]}, 4 + 1 + 1 + 2),
        ({"messages": [{"role": "user", "content": None}]}, 4 + 1 + 2),
    ],
)
def test_more_forms_of_rows_are_known(tmp_path: Path, row: dict[str, Any], tokens: int) -> None:
    (tmp_path / "a.jsonl").write_text(lines([row]))
    assert dict(count_rows(tmp_path / "a.jsonl").counts) == {tokens: 1}


def test_columns_that_trainers_do_not_know_are_named_and_can_be_stated(tmp_path: Path) -> None:
    row = {"id": 7, "body": "some text", "title": "and more", "turns": CHAT, "ids": [1, 2, 3]}
    path = tmp_path / "a.jsonl"
    path.write_text(lines([row]))
    with pytest.raises(InputError, match="line 1 has the columns 'id', 'body'") as caught:
        count_rows(path)
    assert "look like text: body, title, turns; others: id, ids" in str(caught.value.hint)
    assert "--column or data.column" in str(caught.value.hint)
    expected = {"body": 9, "title, body": 18, "ids": 3, "turns": 4 + 1 + 5 + 1 + 9 + 1 + 8 + 4}
    for column, tokens in expected.items():
        assert dict(count_rows(path, column=column).counts) == {tokens: 1}
    for column, says in (("id", "the column 'id' is int"), ("nothing", "no column 'nothing'")):
        with pytest.raises(InputError, match=says) as caught:
            count_rows(path, column=column)
        assert "look like text: body" in str(caught.value.hint)


def test_preference_pairs_are_refused_with_what_counts_their_chosen_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines([{"prompt": "ab", "chosen": "cd", "rejected": "e"}]))
    with pytest.raises(InputError, match="preference pair") as caught:
        count_rows(path)
    assert "--column prompt,chosen" in str(caught.value.hint)
    assert dict(count_rows(path, column="prompt,chosen").counts) == {5: 1}


@pytest.mark.parametrize(
    ("pair", "tokens"),
    [
        ({"prompt": "ab", "chosen": "cd", "rejected": "efgh"}, 6),
        ({"chosen": "abcd", "rejected": "ab"}, 4),
        (
            {
                "prompt": [{"role": "user", "content": "ab"}],
                "chosen": [{"role": "assistant", "content": "c"}],
                "rejected": [{"role": "assistant", "content": "def"}],
            },
            4 + 1 + 2 + 1 + 9 + 1 + 3 + 4,
        ),
        (
            {
                "prompt": "ab",
                "chosen": [
                    {"role": "user", "content": "ab"},
                    {"role": "assistant", "content": "def"},
                ],
                "rejected": [
                    {"role": "user", "content": "ab"},
                    {"role": "assistant", "content": "c"},
                ],
            },
            4 + 1 + 2 + 1 + 9 + 1 + 3 + 4,
        ),
    ],
)
def test_a_job_of_pairs_counts_the_longer_answer_with_its_prompt(
    tmp_path: Path, pair: dict[str, object], tokens: int
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(lines([pair]))
    (found,) = count_rows(path, column=LONGER).counts
    job = line_job(path, "dpo")
    assert job.lengths.mean == found
    assert any(note.key == "data.column" for note in job.assumed)
    assert found == tokens


def test_a_job_of_preferences_without_pairs_counts_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "kto.jsonl"
    path.write_text(lines([{"prompt": "ab", "completion": "cd", "label": True}]))
    assert line_job(path, "kto").lengths.mean == 4
    path.write_text(lines([{"prompt": "ab", "chosen": "cd", "rejected": "ef"}]))
    with pytest.raises(InputError, match=r"line 1 is a preference pair.*KTO takes one"):
        line_job(path, "kto")


@pytest.mark.parametrize("objective", ["dpo", "orpo", "reward"])
def test_rows_that_are_no_pairs_are_refused_where_a_row_is_one(
    objective: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines([{"prompt": "ab", "chosen": "cd"}]))
    with pytest.raises(InputError, match=r"line 1.* is no pair: it has no rejected") as refused:
        line_job(path, objective)
    assert "data.column=" in (refused.value.hint or "")


def line_job(path: Path, objective: str) -> Job:
    stated = {
        "model": "Qwen/Qwen2.5-0.5B",
        "method.kind": "lora",
        "data.dataset": str(path),
        "data.tokenizer": "bytes",
        "train.objective": objective,
    }
    overrides = Overrides(("h100",), stated=stated)
    return jobs_of_line(overrides)[0].job


# --- bad files -------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, str]] = {
    "empty.jsonl": (b"", "holds no rows"),
    "blank.jsonl": (b"\n \n", "holds no rows"),
    "empty.json": (b"[]", "holds no rows"),
    "header.csv": (b"text,label\n", "holds no rows"),
    "notext.jsonl": (b'{"text": "a"}\n{"text": ""}\n', "line 2: the row has no tokens"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": "b"\n{"text": "c"}\n', "line 2 is not JSON"),
    "binary.jsonl": (b"\x01\x02\x00\x03" * 50, "is binary"),
    "zip.jsonl": (b"PK\x03\x04xx", "a zip archive"),
    "utf16.jsonl": ('{"text": "a"}\n'.encode("utf-16"), "UTF-16"),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "caf\xe9"}\n', "line 2 is not UTF-8"),
    "latin.csv": (b"text\ncaf\xe9\n", "is not UTF-8"),
    "latin.json": (b'[{"text": "caf\xe9"}]', "is not UTF-8"),
    "cut.json": (b'[{"text": "a"}, {"text": "b"', "row 2 is not JSON"),
    "cut2.json": (b'[{"text": "a"},', "does not end"),
    "three.json": (b'[{"text": "a"}, {"text": }, {"text": "b"}]', "row 2 is not JSON"),
    "number.json": (b'[{"text": "a"}, 3]', "row 2 is not a JSON object"),
    "object.json": (b'{\n"data": [\n{"text": "a"}]}\n', "one JSON object over many lines"),
    "one.json": (b'{"data": [{"text": "a"}]}', "has the columns 'data'"),
    "ragged.csv": (b"text,label\na,b\nc\n", "line 3 has 1 fields"),
    "twice.csv": (b"text,text\na,b\n", "the column 'text' twice"),
    "cut.jsonl.gz": (gzip.compress(b'{"text": "a"}\n' * 99)[:-12], "cannot be read"),
    "bad.jsonl.gz": (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "cannot be read"),
    "bad.jsonl.xz": (b"\xfd7zXZ\x00" + b"\xff" * 40, "cannot be read"),
    "bad.jsonl.bz2": (b"BZh9" + b"\xff" * 40, "cannot be read"),
    "nested.jsonl": (b"[" * 20_000, "not JSON"),
    "scalar.jsonl": (b"3\n", "is not a JSON object"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_place_and_a_hint(tmp_path: Path, name: str) -> None:
    content, says = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        count_rows(tmp_path / name)
    assert says in caught.value.message
    assert name in caught.value.message
    assert caught.value.hint


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", ROWS)
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="no Parquet file that can be read"):
        count_rows(tmp_path / "cut.parquet")


def test_without_pyarrow_a_parquet_file_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1....PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match="pyarrow, which reads that, is not installed") as caught:
        count_rows(tmp_path / "a.parquet")
    assert "pip install pyarrow" in str(caught.value.hint)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder").mkdir()
    cases = {
        "pipe.jsonl": "is not a regular file",
        "folder": "holds no data set",
        "absent.jsonl": "No such file",
    }
    for name, says in cases.items():
        with pytest.raises(InputError, match=says):
            count_rows(tmp_path / name)
    (tmp_path / "rows.jsonl").write_text("{}")
    with pytest.raises(InputError) as caught:
        count_rows(tmp_path / "row.jsonl")
    assert "did you mean rows.jsonl" in str(caught.value)


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(ROWS))
    path.chmod(0)
    refused = pytest.raises(InputError, match="cannot be read: Permission denied")
    with of_an_ordinary_user(), refused:
        count_rows(path)


# --- large files -----------------------------------------------------------------------------


def sorted_rows(number: int = 20_000) -> list[dict[str, Any]]:
    """Rows in order of length, as some files are: their start speaks of short ones alone."""
    return [{"text": "x" * (1 + i // 100)} for i in range(number)]


def test_a_large_file_is_sampled_all_over_and_says_how_sure_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(sorted_rows()))
    found = count_dataset(path, "bytes", most_bytes=200_000).histogram
    read = sum(found.counts.values())
    assert found.basis == "sampled"
    assert read < 6_000
    assert found.rows == pytest.approx(20_000, rel=0.1)
    mean = sum(k * v for k, v in found.counts.items()) / read
    assert mean == pytest.approx(100.5, rel=0.1)
    assert 0 < found.log_sd < 0.2
    assert count_dataset(path, "bytes", most_bytes=200_000).histogram == found


def test_every_row_has_the_same_chance_of_being_in_the_sample(tmp_path: Path) -> None:
    # Long and short rows alternate: a row after a random byte would be a short one far more often.
    rows = [{"text": "x" * (900 if i % 2 else 9)} for i in range(4_000)]
    path = tmp_path / "a.jsonl"
    path.write_text(lines(rows))
    found = count_dataset(path, "bytes", most_bytes=600_000).histogram
    assert found.counts[900] == pytest.approx(found.counts[9], rel=0.1)
    assert found.rows == pytest.approx(4_000, rel=0.1)


def test_a_hole_of_ten_gigabytes_takes_no_longer_than_its_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as stream:
        stream.write(lines(ROWS).encode())
        stream.truncate(10_000_000_000)
    reading = Reading((path,), most_bytes=1_000_000)
    with pytest.raises(InputError, match=r"longer than 50 MB|not JSON"):
        for _ in reading.records():
            pass


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.jsonl.gz"])
def test_what_can_only_be_read_from_its_start_says_so_with_a_wider_interval(
    tmp_path: Path, name: str
) -> None:
    rows, path = sorted_rows(40_000), tmp_path / name
    if name == "a.json":
        path.write_text(json.dumps(rows))
    elif name == "a.csv":
        table(path, rows)
    else:
        draw = __import__("random").Random(0)
        rows = [{"text": "".join(draw.choices("abcdefghij", k=300))} for _ in range(6_000)]
        path.write_bytes(gzip.compress(lines(rows).encode()))
    found = count_dataset(path, "bytes", most_bytes=path.stat().st_size // 4).histogram
    assert found.basis == "sampled"
    assert sum(found.counts.values()) < len(rows)
    assert found.log_sd >= 0.2


def test_a_large_parquet_file_is_sampled_by_groups_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, sorted_rows(), group=100)
    found = count_dataset(path, "bytes", most_bytes=path.stat().st_size // 4).histogram
    read = sum(found.counts.values())
    assert (found.rows, found.basis) == (20_000, "sampled")
    assert read == 32 * 100
    assert sum(k * v for k, v in found.counts.items()) / read == pytest.approx(100.5, rel=0.1)


def test_a_sample_never_says_that_it_saw_the_longest_row(tmp_path: Path) -> None:
    from autotune.app.dataset.lengths import from_counts

    path = tmp_path / "a.jsonl"
    path.write_text(lines(sorted_rows()))
    found = count_dataset(path, "bytes", most_bytes=200_000).histogram
    lengths = from_counts(found, 4096)
    assert (lengths.maximum, lengths.basis) == (4096, "sampled")
    assert lengths.log_sd == pytest.approx(found.log_sd, rel=0.01)


def test_counts_are_kept_for_the_same_rows_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    path = tmp_path / "a.jsonl"
    path.write_text(lines([{"text": "y" * 1000}] * 1200))
    first = count_rows(path)
    kept = list((tmp_path / "home" / "datasets").iterdir())
    assert len(kept) == 1
    assert "yyy" not in kept[0].read_text()
    monkeypatch.setattr(Reading, "records", lambda _: pytest.fail("read again"))
    assert count_rows(path) == first
    monkeypatch.undo()
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    kept[0].write_text("not what was kept")
    assert count_rows(path) == first
    path.write_text(lines([{"text": "y" * 1001}] * 1200))
    assert dict(count_rows(path).counts) == {1001: 1200}
    assert dict(count_rows(path, column="text").counts) == {1001: 1200}
    assert len(list((tmp_path / "home" / "datasets").iterdir())) == 3


def test_a_long_count_says_how_far_it_is_to_whoever_listens(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(sorted_rows(3_000)))
    told: list[str] = []
    before = TOLD.set(told.append)
    count_rows(path)
    TOLD.reset(before)
    count_rows(path)
    rows = [int(text.split(": ")[1].split()[0].replace(",", "")) for text in told]
    assert rows == [1024, 2048, 3000]
    assert all("a.jsonl" in text for text in told)


def test_an_estimate_says_the_range_and_the_lengths_of_the_job_that_names_the_file(
    tmp_path: Path,
) -> None:
    """The longest row that was seen cuts no estimate: nobody stated a max_length."""
    path = tmp_path / "rows.jsonl"
    path.write_text(lines([{"text": "a tide table " * (n % 40 + 1)} for n in range(400)]))
    report = dataset_histogram(path, model="Qwen/Qwen2.5-0.5B")
    job = tmp_path / "job.yaml"
    head = "model: Qwen/Qwen2.5-0.5B\nmethod: lora\nhardware: rtx4090\ntrain: {epochs: 1}\n"
    job.write_text(f"{head}data: {{dataset: rows.jsonl}}\n")
    named = load_job(job)
    assert report.basis == "estimated"
    assert named.max_length > report.longest_row
    told = report.tokens_p90 / report.tokens_p10
    assert math.log(told) == pytest.approx(2 * Z90 * named.lengths.log_sd)
    job.write_text(f"{head}{report.job_lines[1][0]}\n")
    pasted = load_job(job)
    assert pasted.max_length == named.max_length
    assert pasted.lengths.maximum == named.lengths.maximum
    assert pasted.rows == named.rows
