"""Whatever is wrong with a job file is an InputError that says what, where and what must hold."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from jobfiles import WHOLE, problem, write

from autotune.app.job.load import load_job
from autotune.domain.errors import InputError


def changed(base: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the value at a dotted path replaced; None of a `drop` removes it."""
    values = copy.deepcopy(base)
    target: Any = values
    *parents, last = path.split(".")
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
    if isinstance(target, list):
        target[int(last)] = value
    else:
        target[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("modle", 1, "unknown key 'modle'; did you mean model"),
        ("data.row", 5, "unknown key 'row'; did you mean rows"),
        ("hardware.0.host.ramm", "1 GB", "did you mean ram"),
        ("hardware.0.device", "h100", "unknown key 'device'; did you mean gpu?"),
        ("data.path", "rows.jsonl", "unknown key 'path'; did you mean dataset?"),
        ("method.r", 16, "unknown key 'r'; did you mean rank?"),
        ("train.max_steps", 9, "unknown key 'max_steps'; did you mean steps?"),
        ("data.cutoff_len", 512, "unknown key 'cutoff_len'; did you mean max_length?"),
        ("hardware.0.num_gpus", 2, "unknown key 'num_gpus'; did you mean count?"),
        ("train.lr", 1e-5, "unknown key 'lr'; leave it out: it changes neither time nor memory"),
        ("train.per_device_train_batch_size", 4, "did you mean lock.micro_batch_size?"),
        ("budget", "100USD", "unknown key 'budget'; did you mean limits.budget?"),
        ("model", "meta-llama/Llama-3.1-8X", "Llama-3.1-8B"),
        ("hardware.0.gpu", "h100-smx", "h100-sxm"),
        ("hardware.0.price", "2.50 EUR/h", "not an amount of money"),
        ("hardware.0.price", 2.5, "2.50 USD/h"),
        ("hardware.0.price", "-2.50 USD/h", "must not be negative"),
        ("hardware.0.count", 0, "whole number from 1"),
        ("hardware.0.host.ram", "128", "not a size"),
        ("hardware.0.host.disk", "0 GB", "above zero"),
        ("data.rows", -5, "-5 must be a whole number from 1"),
        ("data.rows", 0, "whole number from 1"),
        ("data.rows", 10**13, "whole number from 1 to 1,000,000,000,000"),
        ("data.rows", True, "true must be a whole number"),
        ("data.rows", 1.5, "1.5 must be a whole number"),
        ("data.rows", 10**400, "a number of more than 30 digits"),
        ("data.max_length", 10**8, "whole number from 1 to 10,000,000"),
        ("train.epochs", 0, "above 0"),
        ("train.epochs", 1e5, "above 0 to 10000"),
        ("train.epochs", "nan", "must be a number"),
        ("train.global_batch_size", "8 rows", "whole number"),
        ("data.lengths.p50", 900, "out of order"),
        ("data.lengths.max", 2048, "max_length is 1024"),
        ("data.lengths.mean", 1000, "mean 1000 cannot go with"),
        ("limits.deadline", 24, "must carry its unit"),
        ("limits.deadline", "36", 'such as "36h" or'),
        ("limits.deadline", "1e300 d", "sensible"),
        ("limits.budget", "50", 'write dollars, such as "50 USD"'),
        ("hardware.0.price", "2.25", 'write "2.25 USD/h" for the whole offer'),
        ("limits.vram_headroom", 8, "to 0.9"),
        ("lock.precison", "bf16", "did you mean precision"),
        ("lock.precision", "bf17", "did you mean bf16"),
        ("lock.rank", 8, "set method.rank in the job instead"),
        ("lock.precision", ["bf16"], "one value, not a list"),
        ("lock.micro_batch_size", 3, "cannot make the global batch of 8"),
        ("allow", ["rank"], "changes what is trained"),
        ("allow", ["compile"], "neutral and always searched"),
        ("method.kind", "lorra", "must be 'full', 'lora' or 'qlora'"),
        ("method.kind", "full", "belong to lora"),
        ("method.targets", "q_prj", "q_proj"),
        ("method.rank", 0, "whole number from 1"),
        ("software", "defualt", "default"),
        ("software", {"torch": 2.1}, "put it in quotes"),
        ("train", None, "or none for evaluation only"),
        ("hardware", [], "at least 1 item"),
        ("stated", [{"savings": False}], "must be a mapping"),
        ("evidence.0.measured", {}, "at least one of"),
        ("evidence.0.measured.duration", "0 h", "above zero"),
        ("evidence.0.config.micro_batch_size", 3, "does not make the global batch of 8"),
        ("evidence.0.hardware", "h100:x", "NAME:N"),
    ],
)
def test_a_wrong_value_is_named_with_what_must_hold(
    tmp_path: Path, path: str, value: object, says: str
) -> None:
    assert says in problem(tmp_path, changed(WHOLE, path, value))


def test_all_problems_of_a_file_are_listed_with_line_and_key(tmp_path: Path) -> None:
    text = "model: 3\nmethod: lora\ndata:\n  rows: -1\n  rowz: 2\n  q: 1\nhardware: t4\n"
    with pytest.raises(InputError) as caught:
        load_job(write(tmp_path, text, "job.yaml"))
    lines = caught.value.message.splitlines()
    assert lines[0].endswith("job.yaml has 4 problems:")
    assert "line 1, model: 3" in lines[1]
    assert "line 4, data.rows: -1" in lines[2]
    assert "line 5, data.rowz: unknown key 'rowz'; did you mean rows" in lines[3]
    assert lines[4].endswith("line 6, data.q: unknown key 'q'")
    assert caught.value.hint.startswith("keys of data: rows, max_length")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x [1]\nb: *x\n", "line 1: aliases and anchors"),
        ("base: &b {rows: 1}\ndata:\n  <<: *b\n", "aliases and anchors"),
        ("model: !!python/object/apply:os.system ['true']\n", "the tag"),
        ("model: !!str 5\n", "the tag"),
        ("model: a\nmodel: b\n", 'found duplicate key "model"'),
        ("", "is empty"),
        ("   \n\n", "is empty"),
        ("- a\n- b\n", "a list where a mapping"),
        ("just text\n", "where a mapping"),
        ("a: [1, 2\n", "line 2"),
        ("a: b: c\n", "line 1"),
        ("[" * 3000, "deeper nesting"),
        ("x: [" + "1," * 30000 + "1]", "more values"),
        ("a: 1\n---\nb: 2\n", "a second document starts"),
    ],
)
def test_yaml_that_no_job_needs_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_job(write(tmp_path, text, "job.yaml"))
    assert says in caught.value.message


def test_a_yaml_bomb_is_refused_before_it_is_built(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(InputError) as caught:
        load_job(write(tmp_path, "\n".join(lines), "job.yaml"))
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "a": 2}', "stated twice"),
        ('{"data": {"rows": NaN}}', "NaN is not a number"),
        ('{"a": ', "line 1: not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "a number too long"),
        ("[1]", "a list where a mapping"),
    ],
)
def test_json_that_no_job_needs_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in problem(tmp_path, text)


def test_files_that_cannot_be_a_job_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("name: caf\u00e9".encode("latin-1"))
    (tmp_path / "big.yaml").write_bytes(b"#" * 5_000_001)
    (tmp_path / "job.yaml").write_text("a: 1")
    cases = {
        "latin.yaml": "not UTF-8",
        "big.yaml": "larger than 5 MB",
        "jop.yaml": "does not exist; did you mean job.yaml",
        "": "is a folder",
        "nul\0.yaml": "cannot be read",
    }
    for name, says in cases.items():
        with pytest.raises(InputError) as caught:
            load_job(tmp_path / name)
        assert says in caught.value.message


def test_a_file_of_another_folder_says_where_its_name_was_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_job(Path("examples/llama-3/qlora.yml"))
    assert f"looked up in {tmp_path}" in str(caught.value.hint)
    assert "give its path in your clone" in str(caught.value.hint)


def test_a_models_name_where_a_file_is_wanted_says_the_form_that_needs_none() -> None:
    with pytest.raises(InputError) as caught:
        load_job(Path("Llama-2-7B"))
    assert "autotune tune Llama-2-7B --rows N --gpu NAME" in str(caught.value.hint)


def test_a_model_folder_that_a_job_file_left_behind_is_named(tmp_path: Path) -> None:
    message = problem(tmp_path, changed(WHOLE, "model", "data/own_model"))
    assert f"no folder {tmp_path / 'data' / 'own_model'}" in message
