"""Decisions that an expert once refused, asked again through the command line.

Each answer is what somebody who rents by the hour would act on, so each is held as it is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from commandline import Answers

ROOT = Path(__file__).resolve().parents[2]
GIB = 2.0**30
LLAMA = ("--model", "meta-llama/Llama-3.1-8B")
PARAMETERS = 8.03e9
SHORT_ROWS = ("--set", "data.lengths.p50=200", "--set", "data.lengths.p95=600",
              "--set", "data.lengths.max=1500")  # fmt: skip
AXOLOTL = ("jobs/trainers/axolotl.yml", "--rows", "52000", "--gpu", "h100-sxm")


@pytest.fixture
def ask(answers: Answers) -> Any:
    """The JSON that a command prints, with its exit code; text where a form is asked for."""

    def asked(*words: str, form: str = "json") -> tuple[int, Any]:
        dry = ("--dry-run",) if words[0] == "tune" else ()
        done = answers(*words, *dry, "--format", form, "--quiet")
        assert done.returncode in {0, 3, 4}, done.stderr
        return done.returncode, done.json if form == "json" else " ".join(done.stdout.split())

    return asked


def tune(method: str, length: int, gpu: str, *more: str) -> tuple[str, ...]:
    words = ("--method", method, "--rows", "10000", "--max-length", str(length), "--gpu", gpu)
    return ("tune", *LLAMA, *words, *more)


def estimate(method: str, length: int, gpu: str, **knobs: object) -> tuple[str, ...]:
    words = ("--method", method, "--rows", "10000", "--max-length", str(length), "--gpu", gpu)
    known = [word for name, value in knobs.items() for word in ("--set", f"{name}={value}")]
    return ("estimate", *LLAMA, *words, *known)


def test_compiling_is_not_billed_as_faster_where_it_loses_the_flash_kernel(ask: Any) -> None:
    step = {
        mode: ask(*estimate("lora", 16_384, "a100-80gb", compile=mode, attention="sdpa",
                            activation_checkpointing="full", micro_batch_size=1))[1]["row"]
        for mode in ("off", "default")
    }  # fmt: skip
    assert step["default"]["step_time_s"] > step["off"]["step_time_s"]


def test_zero_2_of_a_whole_model_holds_the_fp32_masters_that_its_config_asks_for(ask: Any) -> None:
    """16-bit weights and gradients, and per device half of 12 bytes a parameter of states."""
    code, found = ask(*estimate("full", 2048, "h100-sxm:2", sharding="zero2", micro_batch_size=1,
                                activation_checkpointing="full"))  # fmt: skip
    held = found["row"]["memory_bytes"]
    assert held["optimizer"] + held["weights"] + held["gradients"] > (2 + 12 / 2) * PARAMETERS
    hopeless = code == 3 and found["row"]["fits_probability"] < 0.1
    assert hopeless or held["total"] < held["usable"]
    _, found = ask(*estimate("full", 2048, "h100-sxm:4", sharding="zero2", micro_batch_size=1,
                             activation_checkpointing="full"))  # fmt: skip
    assert found["row"]["memory_bytes"]["optimizer"] >= 12 / 4 * PARAMETERS * 0.99


def test_nobody_gains_by_leaving_flash_attention_2(ask: Any) -> None:
    _, found = ask("tune", *AXOLOTL)
    assert found["today"]["config"]["attention"] == "flash_attention_2"
    assert found["best"]["config"]["attention"] == "flash_attention_2"
    equal = [w for n in ("p50", "p95", "max") for w in ("--set", f"data.lengths.{n}=2048")]
    _, found = ask("tune", *AXOLOTL, *equal)
    assert found["best"]["config"]["attention"] == "flash_attention_2"


def test_rows_of_unknown_length_promise_no_dollars(ask: Any, tmp_path: Path) -> None:
    words = tune("lora", 2048, "h100-sxm")
    _, found = ask(*words)
    assert found["lengths_known"] is False
    _, text = ask(*words, form="text")
    assert "between" in text.partition("Settings")[0]
    known = (ROOT / AXOLOTL[0]).read_text(encoding="utf-8")
    own = tmp_path / "axolotl.yml"
    own.write_text(known.replace("tatsu-lab/alpaca", "somebody/her-rows"), encoding="utf-8")
    _, text = ask("tune", str(own), *AXOLOTL[1:], form="text")
    assert "cheaper" not in text
    assert "saves $" not in text


def test_a_disk_that_nobody_stated_forbids_nothing(ask: Any, tmp_path: Path) -> None:
    job = "model: Qwen/Qwen2.5-32B\nmethod: full\ndata: {rows: 10000, max_length: 2048}\n"
    whole = tmp_path / "whole.yaml"
    whole.write_text(job + "hardware: [h200-sxm:8]\n", encoding="utf-8")
    code, found = ask("tune", str(whole))
    assert code == 0
    held = found["best"]["memory_bytes"]
    assert held["total"] < held["usable"]
    stated = "hardware: [{gpu: h200-sxm, count: 8, host: {disk: 100 GB}}]\n"
    whole.write_text(job + stated, encoding="utf-8")
    code, found = ask("tune", str(whole))
    assert code == 3
    assert found["rejected"]["nearest"][0]["short_of"] == "disk"


def test_the_saves_that_somebody_placed_are_kept(ask: Any) -> None:
    _, found = ask("tune", *AXOLOTL)
    today, best = found["today"], found["best"]
    assert best["config"]["save_total_limit"] == today["config"]["save_total_limit"] == 4
    assert best["checkpoints"] == today["checkpoints"]


def test_closed_levers_have_their_price_beside_the_answer(ask: Any) -> None:
    _, found = ask(*tune("lora", 2048, "a100-80gb", *SHORT_ROWS))
    worth = {each["knob"]: each for each in found["sensitivities"] if each["knob"] == "packing"}
    assert worth["packing"]["opens"].startswith("--allow packing")
    assert worth["packing"]["class"] == "numeric"
    assert worth["packing"]["duration_s"] < 0.7 * found["best"]["duration_s"]["p50"]
    assert worth["packing"]["cost_usd"] < 0.7 * found["best"]["cost_usd"]["p50"]
    assert {"kernels", "length_grouping"} <= {each["knob"] for each in found["sensitivities"]}


def test_a_loss_in_chunks_comes_before_a_bigger_machine(ask: Any) -> None:
    code, found = ask(*tune("lora", 32_768, "h100-sxm"))
    first = found["rejected"]["relaxations"][0] if code == 3 else found["best"]
    assert first["config"]["kernels"] in {"liger", "chunked_loss"}
    assert (first["device"], first["device_count"]) == ("h100-sxm", 1)
    code, found = ask(*tune("lora", 32_768, "h100-sxm", "--allow", "kernels"))
    assert code == 0
    assert found["best"]["memory_bytes"]["total"] < 45 * GIB


def test_a_machine_is_one_that_somebody_sells(ask: Any) -> None:
    _, found = ask("compare", *LLAMA, "--method", "lora", "--rows", "10000", "--max-length", "2048",
                   "--gpu", "all")  # fmt: skip
    price = {(row["device"], row["device_count"]): row["usd_per_hour"] for row in found["rows"]}
    assert price["rtx-6000-ada", 1] > 0.6 * price["rtx-6000-ada", 2]  # two are sold as a pair
    four = tune("lora", 2048, "a10g:4")
    _, found = ask(*four)
    assert "12xlarge" in found["best"]["price_source"] or found["best"]["price_marks"]
    _, text = ask("compare", *LLAMA, "--method", "lora", "--rows", "10000", "--max-length", "2048",
                  "--gpu", "rtx-4090,h100-sxm@0USD/h", form="text")  # fmt: skip
    assert "old" in text
    assert "free" in text


def test_a_deadline_is_met_with_eight_chances_in_ten(ask: Any) -> None:
    words = tune("lora", 1024, "rtx-4090,a100-80gb", "--set", "train.epochs=12")
    _, free = ask(*words)
    middle_h = free["best"]["duration_s"]["p50"] / 3600
    code, found = ask(*words, "--deadline", f"{middle_h * 1.02:.2f}h")
    (limit,) = [each for each in found["limits"] if each["limit"] == "deadline"]
    assert limit["kept"] == (limit["probability"] >= 0.8)
    assert code == (0 if limit["kept"] else 4)
    if limit["kept"]:
        assert found["best"]["device"] != free["best"]["device"]


def test_adapters_on_four_cards_take_ddp(ask: Any) -> None:
    _, found = ask(*tune("lora", 2048, "a100-80gb:4"))
    assert found["best"]["config"]["sharding"] == "ddp"


def test_a_quantised_70b_on_two_consumer_cards_runs_with_its_weights_offloaded(
    ask: Any, tmp_path: Path
) -> None:
    """Published: 70B, nf4, FSDP and CPU offload on two 24 GB cards (Answer.AI, 2024-03)."""
    job = tmp_path / "large.yaml"
    job.write_text(
        "model: meta-llama/Llama-2-70b-hf\nmethod: {kind: lora, base: nf4}\n"
        "data: {rows: 10000, max_length: 512}\n"
        "hardware: [{gpu: rtx-4090, count: 2, host: {ram: 256 GiB}}]\n",
        encoding="utf-8",
    )
    code, found = ask("tune", str(job))
    assert code == 0
    config = found["best"]["config"]
    assert (config["sharding"], config["offload"]) == ("fsdp", "all")


def test_whole_models_say_what_their_states_are_in(ask: Any) -> None:
    words = ("tune", "--model", "Qwen/Qwen2.5-1.5B", "--method", "full", "--rows", "10000",
             "--max-length", "1024", "--gpu", "a100-80gb")  # fmt: skip
    _, text = ask(*words, "--verbose", form="text")
    assert "16-bit" in text
    assert "fp32" in text
    _, found = ask(*words)
    wide = [each for each in found["sensitivities"] if each["change"] == "method.base=32bit"]
    assert wide[0]["memory_bytes"] > found["best"]["memory_bytes"]["total"]


def test_where_there_is_no_config_of_today_closed_levers_are_named_too(ask: Any) -> None:
    words = tune("lora", 2048, "a100-80gb", *SHORT_ROWS)
    _, found = ask(*words)
    assert found["today"] is None
    _, text = ask(*words, form="text")
    assert "--allow packing" in text
