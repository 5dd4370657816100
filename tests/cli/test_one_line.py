"""A job in one line, in every command that takes a job; nothing here is replaced by a stand-in."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from autotune.cli.application import run

if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]

LINE = ["--model", "Qwen/Qwen2.5-0.5B", "--rows", "2k", "--max-length", "512"]
QUICK = ["--fidelity", "formula", "--format", "json", "-q"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)


def answer(capsys: Capture, *argv: str, leaves_with: int = 0) -> dict[str, Any]:
    assert run([*argv, *QUICK]) == leaves_with
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: Capture, *argv: str) -> str:
    assert run(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def assumed(found: dict[str, Any]) -> dict[str, str]:
    return {item["key"]: item["value"] for item in found["assumed"]}


def test_estimate_takes_a_job_in_one_line_and_lists_the_method_it_assumed(capsys: Capture) -> None:
    found = answer(capsys, "estimate", *LINE, "--epochs", "2", "--global-batch", "8", "--gpu", "l4")
    assert (found["job"]["rows"], found["job"]["steps"]) == (2000, 500)
    assert found["row"]["device"] == "l4"
    assert assumed(found)["method.kind"] == "lora"


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "unsloth/Qwen2.5-0.5B-Instruct"])
def test_a_model_may_stand_where_the_job_does(capsys: Capture, name: str) -> None:
    asked = ["--rows", "2k", "--max-length", "512", "--gpu", "l4"]
    found = answer(capsys, "estimate", name, *asked)
    assert found["row"] == answer(capsys, "estimate", "--model", name, *asked)["row"]


def test_what_a_short_name_was_taken_for_is_assumed(capsys: Capture) -> None:
    asked = ["--rows", "2k", "--max-length", "512", "--gpu", "l4"]
    found = answer(capsys, "estimate", "olmo-2-1b", *asked)
    full = assumed(found)["model"]
    assert full == "allenai/OLMo-2-0425-1B"
    plain = answer(capsys, "estimate", full, *asked)
    assert plain["row"] == found["row"]
    assert "model" not in assumed(plain)


@pytest.mark.parametrize("command", ["tune", "compare"])
def test_without_a_machine_every_one_with_a_price_is_compared(
    capsys: Capture, tmp_path: Path, command: str
) -> None:
    asked = [*LINE, "--run", str(tmp_path / "a")] if command == "tune" else LINE
    found = answer(capsys, command, *asked)
    everywhere = answer(capsys, command, *asked[:len(LINE)], "--gpu", "all",
                        *(["--run", str(tmp_path / "b")] if command == "tune" else []))  # fmt: skip
    key = "best" if command == "tune" else "rows"
    assert found[key] == everywhere[key]
    assert assumed(found)["hardware"] == "all that have a price"
    assert "hardware" not in assumed(everywhere)


def test_a_probe_needs_a_machine(capsys: Capture) -> None:
    assert "lacks --gpu NAME" in refusal(capsys, "tune", *LINE, "--score", "probe")


def test_a_job_file_without_a_machine_is_compared_on_all(capsys: Capture, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: qwen2.5-0.5b\ndata: {rows: 2000}\n", encoding="utf-8")
    assert assumed(answer(capsys, "compare", str(job)))["hardware"] == "all that have a price"
    assert "write `hardware: h100`, or --gpu NAME" in refusal(capsys, "estimate", str(job))


@pytest.mark.parametrize("gpu", [[], ["--gpu", "all"]])
def test_a_trainers_file_runs_today_on_no_machine_that_is_known(
    capsys: Capture, tmp_path: Path, gpu: list[str]
) -> None:
    script = tmp_path / "args.json"
    script.write_text(
        '{"model_name_or_path": "Qwen/Qwen2.5-0.5B", "per_device_train_batch_size": 4,'
        ' "gradient_accumulation_steps": 2, "output_dir": "out", "use_peft": true}',
        encoding="utf-8",
    )
    found = answer(capsys, "compare", str(script), "--rows", "2k", "--method", "lora", *gpu)
    assert len(found["rows"]) > 20
    assert ("hardware" in assumed(found)) == (not gpu)
    told = answer(capsys, "tune", str(script), "--rows", "2k", "--method", "lora", *gpu)
    assert told["today"] is None
    assert told["job"]["global_batch_size"] == 8


def test_a_file_called_as_a_model_is_is_the_job(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "llama-7b").write_text("model: qwen2.5-0.5b\ndata: {rows: 7}\n", encoding="utf-8")
    assert answer(capsys, "estimate", "llama-7b", "--gpu", "h100")["job"]["rows"] == 7


def test_what_is_near_a_model_is_asked_about(capsys: Capture) -> None:
    told = refusal(capsys, "tune", "qwen2.5-05b", *LINE[2:], "--gpu", "l4")
    assert "qwen2.5-05b does not exist; did you mean Qwen/Qwen2.5-0.5B" in told
    assert "autotune tune qwen2.5-0.5b" in refusal(capsys, "plan", "qwen2.5-0.5b")


def test_a_stated_method_is_not_listed_as_assumed(capsys: Capture) -> None:
    found = answer(capsys, "estimate", *LINE, "--method", "full", "--gpu", "h100")
    assert "method.kind" not in assumed(found)
    assert found["job"]["method"].startswith("full")


def test_set_changes_a_job_in_one_line(capsys: Capture) -> None:
    found = answer(
        capsys, "estimate", *LINE, "--gpu", "l4", "--set", "micro_batch_size=2",
        "--set", "method.rank=4",
    )  # fmt: skip
    assert found["row"]["config"]["micro_batch_size"] == 2
    assert "rank 4" in found["job"]["method"]


def test_tune_takes_a_job_in_one_line(capsys: Capture) -> None:
    found = answer(capsys, "tune", *LINE, "--gpu", "l4,2xL40S", "--dry-run")
    assert found["best"]["device"] in {"l4", "l40s"}
    assert assumed(found)["method.kind"] == "lora"


def test_compare_takes_a_job_in_one_line(capsys: Capture) -> None:
    found = answer(capsys, "compare", *LINE, "--gpu", "l4,2xL40S")
    machines = {(row["device"], row["device_count"]) for row in found["rows"]}
    assert machines == {("l4", 1), ("l40s", 2)}


@pytest.mark.parametrize("chosen", ["text", "json", "csv", "md"])
def test_estimate_of_what_does_not_fit_leaves_with_3_and_prints_its_row(
    chosen: str, capsys: Capture
) -> None:
    argv = ["estimate", "--model", "Qwen/Qwen2.5-7B", "--rows", "2k", "--method", "full"]
    assert run([*argv, "--gpu", "t4", "--fidelity", "formula", "--format", chosen, "-q"]) == 3
    printed = capsys.readouterr().out
    assert "t4" in printed
    if chosen == "json":
        found = json.loads(printed)
        assert found["row"]["verdict"] == "certain_oom"
        assert found["shortfall"]["required_bytes"] > found["shortfall"]["available_bytes"]
        assert any(each["apply"] for each in found["relaxations"])
    if chosen == "text":
        assert "does not fit" in printed.lower()
        assert "--set method" in printed


def test_estimate_says_that_the_micro_batch_was_assumed_and_the_largest_that_fits(
    capsys: Capture,
) -> None:
    argv = ["estimate", "--model", "Qwen/Qwen2.5-1.5B", "--rows", "2k", "--gpu", "rtx-4090"]
    found = answer(capsys, *argv, leaves_with=3)
    assert found["row"]["config"]["micro_batch_size"] == 8
    (said,) = [text for text in found["decisive"] if "micro-batch of 8 was assumed" in text]
    largest = int(re.search(r"the largest that fits is (\d+): add", said)[1])
    typed = re.search(r"`(.+)`", said)[1].split()
    assert answer(capsys, *argv, *typed)["row"]["config"]["micro_batch_size"] == largest
    above = ["--set", f"micro_batch_size={2 * largest}"]
    stated = answer(capsys, *argv, *above, leaves_with=3)
    assert not any("was assumed" in text for text in stated["decisive"])


def test_estimate_says_where_recomputing_makes_room_and_where_nothing_does(capsys: Capture) -> None:
    argv = ["estimate", "--model", "meta-llama/Llama-3.1-8B", "--rows", "2k", "--gpu", "rtx-4090"]
    found = answer(capsys, *argv, leaves_with=3)
    said = next(text for text in found["decisive"] if "was assumed" in text)
    assert "the largest that fits with gradient_checkpointing is" in said
    assert answer(capsys, *argv, *re.search(r"`(.+)`", said)[1].split())["row"]["verdict"] == "fits"
    found = answer(capsys, *argv, "--method", "full", leaves_with=3)
    assert any("no smaller one fits either" in text for text in found["decisive"])


def test_what_would_fit_is_not_held_to_a_micro_batch_that_was_assumed(capsys: Capture) -> None:
    argv = ["estimate", "--model", "qwen2.5-7b", "--method", "full", "--max-length", "2048"]
    argv += ["--rows", "50000"]
    held = ["--set", "micro_batch_size=8"]
    found = answer(capsys, *argv, "--gpu", "l40s", leaves_with=3)
    stated = answer(capsys, *argv, "--gpu", "l40s", *held, leaves_with=3)
    assert found["row"]["config"] == stated["row"]["config"]
    as_lora = "LoRA rank 16, not full fine-tuning"
    assert as_lora in {each["change"] for each in found["relaxations"]}
    assert as_lora not in {each["change"] for each in stated["relaxations"]}  # shorter rows as well
    (smaller,) = answer(capsys, *argv[:4], "lora", *argv[5:], "--gpu", "4090", leaves_with=3)[
        "relaxations"
    ]  # where that is all that it takes, nothing else is told
    assert smaller["config"]["micro_batch_size"] == 1
    first = {each["kind"]: each for each in reversed(found["relaxations"])}
    for each in first.values():
        machine = [] if each["kind"] == "machine" else ["--gpu", "l40s"]
        typed = answer(capsys, *argv, *machine, *each["apply"].split())
        assert typed["row"]["config"] == each["config"]
        assert typed["row"]["verdict"] == "fits"


def test_every_machine_that_compare_prints_can_be_typed(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    argv = ["compare", *LINE, "--fidelity", "formula", "-q"]
    machines = "l4,8x a100-40gb,NVIDIA GeForce RTX 4090"
    assert run([*argv, "--spot", "--gpu", machines]) == 0
    printed = capsys.readouterr().out
    labels = [label for label, _ in machines_of(printed)]
    assert {"l4", "8x a100-sxm4-40gb, spot", "8x a100-sxm4-40gb", "rtx-4090"} <= set(labels)
    assert run([*argv, "--gpu", ",".join(labels)]) == 0
    assert machines_of(capsys.readouterr().out) == machines_of(printed)


def test_tune_takes_a_machine_on_spot_by_an_option_or_by_its_name(capsys: Capture) -> None:
    argv = ("tune", *LINE, "--dry-run", "--gpu")
    both, named = answer(capsys, *argv, "h100", "--spot"), answer(capsys, *argv, "h100 spot")
    assert both["best"]["spot"] is named["best"]["spot"] is True
    assert both["best"]["usd_per_hour"] == named["best"]["usd_per_hour"]
    assert answer(capsys, *argv, "h100")["best"]["usd_per_hour"] > both["best"]["usd_per_hour"]


def machines_of(printed: str) -> list[tuple[str, str]]:
    """The machines of compare's table, each with its first number: the price."""
    table = printed.partition("\nMachines")[2].partition("\n\n")[0]
    return re.findall(r"^  (\S.*?) {2,}([0-9.]+)", table, re.MULTILINE)


def test_recompute_takes_a_job_in_one_line_from_its_first_machine(capsys: Capture) -> None:
    found = answer(capsys, "recompute", *LINE, "--gpu", "l4,h100")
    text = json.dumps(found)
    assert '"device": "l4"' in text
    assert '"device": "h100-sxm"' in text
    assert "from one machine to another" in refusal(capsys, "recompute", *LINE, "--gpu", "l4")


def test_verify_takes_the_job_of_a_log_in_one_line(tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "out" / "trainer_state.json"
    log.parent.mkdir()
    log.write_text(json.dumps({
        "global_step": 125, "max_steps": 125, "num_train_epochs": 1, "epoch": 1.0,
        "train_batch_size": 8, "save_steps": 500,
        "log_history": [{"step": 125, "train_runtime": 100.0, "epoch": 1.0}],
    }))  # fmt: skip
    argv = ["verify", str(log), *LINE, "--gpu", "l4", "--format", "json", "-q"]
    assert run([*argv, "--set", "micro_batch_size=8"]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    step = next(line for line in lines if line["what"] == "step_time")
    assert 0.5 < step["actual"] < 1.0
    (tmp_path / "job.yaml").write_text("model: gpt2\n")
    assert "states the job" in refusal(capsys, "verify", "job.yaml", *argv[1:])


def test_data_states_the_dataset_by_its_whole_path(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "four"}\n{"text": "seven w"}\n')
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
        "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
    }))  # fmt: skip
    argv = ["tune", "--model", str(model), "--data", "rows.jsonl", "--gpu", "l4"]
    argv += ["--set", "data.tokenizer=bytes", "--run", "kept"]
    assert answer(capsys, *argv)["job"]["rows"] == 2
    monkeypatch.chdir("/")
    kept = tmp_path / "kept"
    again = answer(capsys, "recompute", str(kept), "--gpu", "t4")
    assert again
    spec = json.loads((kept / "job.json").read_text())
    assert str(tmp_path / "rows.jsonl") in json.dumps(spec)


def test_rows_beside_data_count_and_the_file_gives_the_lengths(
    tmp_path: Path, capsys: Capture
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "four"}\n{"text": "seven w"}\n')
    found = answer(
        capsys, "estimate", "--model", "Qwen/Qwen2.5-0.5B", "--data", str(rows), "--rows", "50k",
        "--set", "data.tokenizer=bytes", "--gpu", "l4",
    )  # fmt: skip
    assert found["job"]["rows"] == 50_000
    assert found["job"]["max_length"] == 7
    assert assumed(found)["data.lengths"] == "of 50000 rows"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("50k", 50_000), ("50K", 50_000), ("1.5M", 1_500_000), ("1.1m", 1_100_000),
        ("304,000", 304_000), ("304_000", 304_000), ("2e5", 200_000), (" 20000 ", 20_000),
        ("0.5k", 500),
    ],
)  # fmt: skip
def test_rows_are_read_as_people_write_them_on_the_line_and_in_a_file(
    text: str, rows: int, tmp_path: Path, capsys: Capture
) -> None:
    found = answer(
        capsys, "estimate", "--model", "Qwen/Qwen2.5-0.5B", "--rows", text, "--gpu", "h100"
    )
    assert found["job"]["rows"] == rows
    job = tmp_path / "job.yaml"
    job.write_text(f"model: Qwen/Qwen2.5-0.5B\ndata: {{rows: '{text}'}}\nhardware: h100\n")
    assert answer(capsys, "estimate", str(job))["job"]["rows"] == rows


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--rows", "1,5M", "a comma parts thousands"),
        ("--rows", "304.000", "can be read as a decimal or as 304,000"),
        ("--rows", "50x", "such as 50000, 50k or 1.5M"),
        ("--rows", "0", "a whole number from 1"),
        ("--rows", "1.5", "a whole number from 1"),
        ("--max-length", "4k", "can be read as 4,000 or as 4,096"),
        ("--global-batch", "1k", "can be read as 1,000 or as 1,024"),
    ],
)
def test_a_number_that_reads_two_ways_is_refused_with_both(
    option: str, text: str, says: str, capsys: Capture
) -> None:
    error = refusal(
        capsys, "estimate", "--model", "gpt2", "--rows", "9", "--gpu", "t4", option, text
    )
    assert f"error: {option}: '{text}'" in error
    assert says in error


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("tune", "JOB is missing"),
        ("estimate", "JOB is missing"),
        ("compare --gpu t4", "JOB is missing"),
        ("tune --rows 5", "lacks --model NAME"),
        ("estimate --model gpt2 --gpu t4", "lacks --rows N or --data FILE"),
        ("estimate --model gpt2 --rows 5", "lacks --gpu NAME"),
        ("tune job.yaml --from-args train.py", "--from-args are both given"),
        ("tune --model gpt2 --rows 9 --gpu t4 --beside a.yaml", "--beside"),
        ("tune --model gpt2 --rows 9 --gpu t4 --variant a", "--variant"),
        ("tune --model gpt2 --rows 9 --gpu t4 --method lara", "write lora, qlora or full"),
        ("tune --model gpt2 --rows 9 --gpu t4 --method int8", "--set method.base=int8"),
        ("tune --model gpt2 --rows 9 --gpu t4 --method dora", "write --variant dora"),
        ("tune --model gpt2 --data= --gpu t4", "--data '' names no file"),
    ],
)
def test_a_job_is_a_file_or_a_line_never_both_or_neither(
    argv: str, says: str, capsys: Capture
) -> None:
    assert says in refusal(capsys, *argv.split())


def test_options_of_a_line_beside_a_job_file_say_how_to_change_it(
    tmp_path: Path, capsys: Capture
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: gpt2\ndata: {rows: 9}\nhardware: t4\n")
    error = refusal(capsys, "estimate", str(job), "--rows", "10k", "--epochs", "3")
    assert "--rows, --epochs cannot be given beside it" in error
    assert "--set data.rows=10000 --set train.epochs=3\n" in error
    assert run(["estimate", str(job), "--set", "data.rows=10k", *QUICK]) == 0


INSTANCES = "p4d.24xlarge,Standard_ND96isr_H100_v5,gpu_8x_h100_sxm5"


def test_an_instance_is_its_devices_at_its_own_price_with_its_own_host(capsys: Capture) -> None:
    found = answer(capsys, "estimate", *LINE, "--gpu", "p4d.24xlarge")
    row = found["row"]
    assert (row["device"], row["device_count"]) == ("a100-sxm4-40gb", 8)
    assert row["instance"] == "aws p4d.24xlarge"
    assert row["usd_per_hour"] == pytest.approx(21.957642)
    assert row["price_source"].startswith("aws p4d.24xlarge in us-east-1/")
    said = assumed(found)["hardware[0] (8x a100-sxm4-40gb).instance"]
    assert said == "aws p4d.24xlarge: 8x a100-sxm4-40gb, 96 vCPUs, 1.1 TiB"
    assert "cores" not in assumed(found)["hardware[0] (8x a100-sxm4-40gb).host"]
    spot = answer(capsys, "estimate", *LINE, "--gpu", "p4d.24xlarge spot")["row"]
    assert (spot["spot"], spot["usd_per_hour"]) == (True, pytest.approx(11.932))
    own = answer(capsys, "estimate", *LINE, "--gpu", "a2-highgpu-8g@20USD/h")["row"]
    assert (own["instance"], own["usd_per_hour"]) == ("gcp a2-highgpu-8g", 20.0)


def test_instances_are_printed_by_name_and_what_is_printed_can_be_typed(capsys: Capture) -> None:
    rows = answer(capsys, "compare", *LINE, "--gpu", INSTANCES, "--spot")["rows"]
    named = {(row["instance"], row["spot"]): row["usd_per_hour"] for row in rows}
    assert len(named) == 4
    assert named["azure Standard_ND96isr_H100_v5", False] == pytest.approx(98.32)
    assert named["lambda gpu_8x_h100_sxm5", False] == pytest.approx(31.92)
    labels = [
        f"8x {row['device']} ({row['instance']}){', spot' if row['spot'] else ''}" for row in rows
    ]
    assert run(["compare", *LINE, "--gpu", ",".join(labels), "--fidelity", "formula", "-q"]) == 0
    assert all(label in " ".join(capsys.readouterr().out.split()) for label in labels[:1])
    again = answer(capsys, "compare", *LINE, "--gpu", ",".join(labels))["rows"]
    assert {(row["instance"], row["spot"]): row["usd_per_hour"] for row in again} == named


@pytest.mark.parametrize(
    "hardware",
    ["p4d.24xlarge", "[p4d.24xlarge]", "{gpu: p4d.24xlarge}", "{instance: p4d.24xlarge}",
     "[{instance: aws p4d.24xlarge, gpu: a100-40gb, count: 8}]"],
)  # fmt: skip
def test_a_job_file_names_an_instance(hardware: str, tmp_path: Path, capsys: Capture) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"model: Qwen/Qwen2.5-0.5B\ndata: {{rows: 2k}}\nhardware: {hardware}\n")
    row = answer(capsys, "estimate", str(job))["row"]
    assert (row["instance"], row["device_count"]) == ("aws p4d.24xlarge", 8)


def test_a_run_on_an_instance_is_recomputed_on_it(tmp_path: Path, capsys: Capture) -> None:
    answer(capsys, "tune", *LINE, "--gpu", "p4d.24xlarge", "--run", str(tmp_path / "run"))
    found = answer(capsys, "recompute", str(tmp_path / "run"))
    assert found["changed"] is False
    assert '"instance": "aws p4d.24xlarge"' in json.dumps(found)
    elsewhere = answer(capsys, "recompute", str(tmp_path / "run"), "--gpu", "p5.48xlarge")
    assert elsewhere["changed"] is True
    assert '"instance": "aws p5.48xlarge"' in json.dumps(elsewhere)


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("p4d.12xlarge", ["unknown instance", "did you mean p4d.24xlarge", "known of aws"]),
        ("2xp5.48xlarge", ["aws p5.48xlarge has 8x h100-sxm, and 2 are asked for"]),
        ("t4 (aws p4d.24xlarge)", ["aws p4d.24xlarge has 8x a100-sxm4-40gb"]),
        ("a2-highgpu-8g", ["no price of gcp a2-highgpu-8g", '--gpu "a2-highgpu-8g@PRICE"']),
        ("gpu_8x_h100_sxm5 spot", ["no spot price of lambda gpu_8x_h100_sxm5"]),
        ("p5.48xlargo", ["unknown device"]),
    ],
)
def test_an_instance_that_cannot_be_priced_says_what_can(
    gpu: str, says: list[str], capsys: Capture
) -> None:
    error = refusal(capsys, "estimate", *LINE, "--gpu", gpu)
    assert all(part in error for part in says), error


def test_a_fine_tune_is_priced_by_its_bases_shape_and_the_answer_says_so(capsys: Capture) -> None:
    argv = ["--model", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "--rows", "2k", "--gpu", "h100"]
    argv += ["--max-length", "256"]
    found = answer(capsys, "estimate", *argv)
    assert found["job"]["model"] == "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
    assert assumed(found)["model.shape"] == "Qwen/Qwen2.5-7B"
    base = answer(capsys, "estimate", "--model", "Qwen/Qwen2.5-7B", *argv[2:])
    assert found["row"]["memory_bytes"] == base["row"]["memory_bytes"]
    assert run(["tune", *argv, "--fidelity", "formula", "--dry-run", "-q"]) == 0
    assert "model.shape Qwen/Qwen2.5-7B; method.kind lora" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_quantised_copy_is_trained_as_it_is_stored(capsys: Capture) -> None:
    argv = ["--model", "unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "--rows", "2k", "--gpu", "h100"]
    argv += ["--max-length", "256"]
    found = answer(capsys, "estimate", *argv)
    assert assumed(found)["method.base"] == "nf4"
    plain = answer(capsys, "estimate", *argv, "--set", "method.base=16bit")
    assert plain["job"]["model"] == "Qwen/Qwen2.5-7B-Instruct"
    weights = [answer_["row"]["memory_bytes"]["weights"] for answer_ in (found, plain)]
    assert weights[0] < weights[1] / 2
    error = refusal(
        capsys, "estimate", "--model", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", *argv[2:]
    )
    assert "GGUF" in error
    assert "meta-llama/Meta-Llama-3.1-8B-Instruct" in error


SEQUENCE_PARALLEL = """\
base_model: Qwen/Qwen2.5-7B
sequence_len: 400000
sample_packing: true
context_parallel_size: 8
datasets: [{path: rows.jsonl, type: completion}]
output_dir: out
gradient_accumulation_steps: 1
micro_batch_size: 1
num_epochs: 1
optimizer: adamw_torch_8bit
learning_rate: 2e-5
bf16: auto
gradient_checkpointing: true
flash_attention: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true, auto_wrap_policy: TRANSFORMER_BASED_WRAP}
"""


def test_a_trainers_file_on_a_whole_host_that_fits_nowhere_gets_an_answer(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "long.yaml").write_text(SEQUENCE_PARALLEL)
    argv = ["tune", "long.yaml", "--gpu", "8xH100", "--rows", "1k", "--dry-run"]
    found = answer(capsys, *argv, leaves_with=3)
    assert found["best"] is None
    assert found["rejected"]["nearest"]


def test_a_variant_of_lora_stands_beside_the_method_in_one_line(capsys: Capture) -> None:
    found = answer(capsys, "estimate", *LINE, "--gpu", "l40s", "--variant", "dora")
    assert found["job"]["method"].startswith("DoRA rank 16")
    assert found["job"]["name"] == "Qwen2.5-0.5B-dora"
    plain = answer(capsys, "estimate", *LINE, "--gpu", "l40s")
    assert found["row"]["step_time_s"] > plain["row"]["step_time_s"]
    message = refusal(capsys, "estimate", *LINE, "--gpu", "l40s", "--variant", "dorra")
    assert "did you mean dora" in message


def test_a_variant_of_lora_is_kept_by_its_run(capsys: Capture, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "kept")
    answer(capsys, "tune", *LINE, "--gpu", "l40s", "--variant", "rslora", "--run", run_dir)
    again = answer(capsys, "recompute", run_dir, "--gpu", "a100-sxm4-80gb")
    assert "rsLoRA rank 16" in json.dumps(again)
