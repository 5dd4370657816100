"""Every closed knob says what it would be worth, and typing its option gives what was said."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_job
from autotune.app.runs.export import export_run
from autotune.app.tune.tune import Options, tune
from autotune.app.whatif.sensitivities import PLANS
from autotune.domain.answer.recommendation import Decisive, WorthProbe
from autotune.domain.config import KNOBS
from autotune.report.layout.text import sections_text
from autotune.report.payload import dumps, recommendation_payload
from autotune.report.recorded import recorded_payload
from autotune.report.screens.screen import MOST_LINES, ONE_LINE
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import TUNE_REPORT
from autotune.report.sections.settings import worth_a_probe_section
from autotune.report.sections.what_ifs import closed_section, opening_words

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Recommendation, Sensitivity

ROOT = Path(__file__).parents[3]
SHORT = "lengths: {p50: 85, p95: 240, max: 1500}"
JOB = """\
name: short-rows
model: {model}
method: {{kind: lora, rank: 16, targets: all-linear}}
data: {{rows: 20000, max_length: 2048, {lengths}}}
train: {{epochs: 1, global_batch_size: 16}}
hardware: [{{gpu: {gpu}, count: 1, price: 1.50 USD/h}}]
software: {software}
"""
FLASH = "'2025-02'"
OPTIONS = Options(dry_run=True, fidelity="formula", trials=1)


def written(
    folder: Path, lengths: str = SHORT, gpu: str = "a100-80gb", software: str = FLASH,
    model: str = "Qwen/Qwen2.5-1.5B",
) -> Path:  # fmt: skip
    path = folder / "job.yaml"
    path.write_text(JOB.format(model=model, lengths=lengths, gpu=gpu, software=software))
    return path


def answered(path: Path, opens: str = "") -> Recommendation:
    """The answer with the option that a what-if names."""
    words = opens.split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    sets = dict(value.split("=", 1) for flag, value in pairs if flag == "--set")
    allow = [value for flag, value in pairs if flag == "--allow"]
    return tune(load_job(path, set_values=sets, allow=allow), OPTIONS)


def by_change(answer: Recommendation) -> dict[str, Sensitivity]:
    return {f"{each.key}={each.value}": each for each in answer.sensitivities}


def test_every_closed_knob_is_priced_and_none_is_applied(tmp_path: Path) -> None:
    answer = answered(written(tmp_path))
    assert answer.best is not None
    found = by_change(answer)
    own = {each.key for each in found.values() if each.class_ != "quality"}
    assert own >= {"packing", "length_grouping", "adapter_dtype", "optimizer"}
    for name, knob in KNOBS.items():
        if knob.opt_in and knob.knob_class == "numeric":
            assert answer.best.config.as_dict()[name] == knob.choices[0]
    for each in found.values():
        assert each.config is not None
        if each.class_ != "quality":
            assert each.config[each.key] == each.value


def test_packing_and_grouping_of_short_rows_are_large_and_say_what_they_change(
    tmp_path: Path,
) -> None:
    answer = answered(written(tmp_path))
    assert answer.best is not None
    found = by_change(answer)
    for change in ("packing=on", "length_grouping=on"):
        duration_s = found[change].duration_s
        assert duration_s is not None
        assert duration_s < 0.8 * answer.best.duration_s.p50
    payload = recommendation_payload(answer)
    words = opening_words(payload, 2)
    assert "`--allow packing`: " in words
    assert "fewer optimizer steps, of more rows" in words
    screen = recommendation_screen(payload)
    assert "--allow packing" in screen
    assert len(screen.splitlines()) <= MOST_LINES
    verbose = " ".join(TUNE_REPORT.text(payload, width=100, colour=False).split())
    for each in answer.sensitivities:
        assert each.opens in verbose
    assert "optimizer steps of more rows each, not 1,250" in verbose


@pytest.mark.parametrize("software", [FLASH, "default"])
def test_what_is_told_of_an_option_is_what_typing_it_gives(tmp_path: Path, software: str) -> None:
    path = written(tmp_path, software=software)
    answer = answered(path)
    told = [each for each in answer.sensitivities if each.duration_s is not None]
    assert len(told) > len(answer.sensitivities) / 2
    for each in told:
        typed = answered(path, each.opens).best
        assert typed.duration_s.p50 == pytest.approx(each.duration_s, rel=2e-3), each.opens
        assert typed.cost_usd.p50 == pytest.approx(each.cost_usd, rel=2e-3), each.opens


def test_who_packs_is_told_how_few_steps_that_leaves_and_what_keeps_them(tmp_path: Path) -> None:
    path = written(tmp_path)
    plain, packed = answered(path).best, answered(path, "--set packing=on")
    assert packed.best.steps < plain.steps / 4
    (told,) = (text for text in packed.warnings if text.startswith("packing: "))
    assert isinstance(told, Decisive)
    assert f"{packed.best.steps} steps, not 1,250; " in told
    assert len(told) <= ONE_LINE
    _, advised, about = told.split("`")
    kept = answered(path, f"--set packing=on {advised}").best
    assert kept.steps == pytest.approx(plain.steps, rel=0.5)
    said = int(about.removeprefix(": about ").replace(",", ""))
    assert kept.steps == pytest.approx(said, rel=0.02)
    assert kept.duration_s.p50 < plain.duration_s.p50
    assert not [t for t in answered(path).warnings if t.startswith("packing: ")]


@pytest.mark.usefixtures("home")
def test_what_runs_a_packed_pick_packs(tmp_path: Path) -> None:
    """transformers' Trainer has no packing: steps, time and memory would be others."""
    opened = load_job(
        written(tmp_path, software='{flash_attn: "2.8.3"}'), set_values={"packing": "on"}
    )
    answer = tune(opened, replace(OPTIONS, dry_run=False, run_dir=tmp_path / "run"))
    assert answer.best.config.packing == "on"
    arguments = json.loads((tmp_path / "run" / "sft_config.json").read_text())
    assert arguments["packing"] is True
    assert not [text for text in answer.warnings if "has no packing" in text]
    words = recommendation_screen(recommendation_payload(answer))
    assert f"MAX_STEPS={answer.best.steps // 2} bash" in words
    _, notes = export_run(tmp_path / "run", "hf")
    assert [text for text in notes if isinstance(text, Decisive) and "has no packing" in text]


def test_a_lever_that_needs_a_missing_package_is_priced_with_it_and_says_so(
    tmp_path: Path,
) -> None:
    found = by_change(answered(written(tmp_path, software="default")))["packing=on"]
    assert found.opens == "--allow packing --set software.flash_attn=2.8.3"
    assert "needs flash-attn, which is not installed" in found.note
    assert "optimizer steps of more rows each" in found.note


def test_missing_kernels_of_delta_nets_are_the_first_thing_that_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, software="default", model="Qwen/Qwen3.5-0.8B")
    plain = answered(path)
    told = {each.key: each for each in plain.sensitivities}["software.flash_linear_attention"]
    after = answered(path, told.opens)
    assert plain.best
    assert after.best
    assert after.best.duration_s.p50 == pytest.approx(told.duration_s)
    assert after.best.duration_s.p50 < plain.best.duration_s.p50
    assert told.opens in opening_words(recommendation_payload(plain), 1)
    assert told.key not in {each.key for each in after.sensitivities}


def test_plans_that_cudnn_builds_for_new_lengths_are_named_with_what_leaves_them_out(
    tmp_path: Path,
) -> None:
    def at(software: str) -> tuple[Recommendation, Sensitivity | None]:
        path = written(tmp_path, model="Qwen/Qwen2.5-0.5B", gpu="h100-sxm", software=software)
        answer = answered(path)
        return answer, {each.key: each for each in answer.sensitivities}.get(PLANS)

    plain, found = at('{cudnn_attention: "true"}')
    assert found is not None
    after = answered(tmp_path / "job.yaml", found.opens)
    assert plain.best
    assert after.best
    assert after.best.duration_s.p50 == pytest.approx(found.duration_s)
    assert after.best.duration_s.p50 < plain.best.duration_s.p50
    assert at("default")[1] is None, "what is written sees to it"


def test_without_row_lengths_nobody_pretends_to_know_what_padding_is_worth(
    tmp_path: Path,
) -> None:
    answer = answered(written(tmp_path, lengths="padding: longest"))
    found = by_change(answer)
    for change in ("packing=on", "length_grouping=on"):
        each = found[change]
        assert (each.duration_s, each.cost_usd, each.saved_s) == (None, None, None)
        assert "no row lengths are known" in each.note
        assert each.opens == f"--allow {each.key}"
    assert found["adapter_dtype=bf16"].duration_s is not None
    payload = recommendation_payload(answer)
    said = opening_words(payload, 2)
    both = "`--allow packing`, `--allow length_grouping`"
    assert said == f"May save more, depending on the row lengths: {both}."
    slower = [e for e in payload.sensitivities if (e.saved_s or 0.0) <= 0 and e.duration_s]
    assert slower  # of these none is named, also where there is room for all
    named = opening_words(payload, 99)
    assert not any(f"`{each.opens}`" in named for each in slower)


@pytest.mark.parametrize(("gpu", "named"), [("a100-80gb", True), ("t4", False)])
def test_where_fp32_is_pinned_tf32_is_named_if_the_device_has_it(
    tmp_path: Path, gpu: str, named: bool
) -> None:
    path = written(tmp_path, lengths="lengths: {p50: 700, p95: 1400, max: 2048}", gpu=gpu)
    opens = "--set precision=fp32"
    answer = answered(path, opens)
    assert answer.best.config.precision == "fp32"
    found = by_change(answer).get("precision=tf32")
    assert (found is not None) == named
    screen = " ".join(recommendation_screen(recommendation_payload(answer)).split())
    assert ("`--set precision=tf32`: " in screen) == named
    if found is not None:
        assert found.saved_s > 0.5 * answer.best.duration_s.p50
        assert "other rounding, in matrix products alone" in screen
        typed = answered(path, found.opens).best
        assert typed.duration_s.p50 == pytest.approx(found.duration_s, rel=1e-6)
        assert "precision=tf32" not in by_change(answered(path))


def test_without_row_lengths_tf32_keeps_its_figure(tmp_path: Path) -> None:
    answer = answered(written(tmp_path, lengths=""), "--set precision=fp32")
    text = " ".join(opening_words(recommendation_payload(answer), 2).split())
    assert text.startswith("You could save more with `--set precision=tf32`: ")
    assert "May save more, depending on the row lengths: `--allow " in text


def test_a_change_worth_a_probe_can_be_typed_as_it_is_printed(tmp_path: Path) -> None:
    payload = recommendation_payload(answered(written(tmp_path)))
    found = [
        WorthProbe(change, knob, 60.0, 1.0, 0.0, 2.0, "nobody measured it")
        for change, knob in (
            ("4x rtx-5090", "machine"), ("h200-sxm, spot", "machine"),
            ("compile=default, compile_scope=regional", "compile"),
        )
    ]  # fmt: skip
    text = sections_text([worth_a_probe_section(replace(payload, worth_a_probe=found))], width=200)
    for typed in (
        "--gpu '4x rtx-5090'", "--gpu 'h200-sxm, spot'",
        "--set compile=default --set compile_scope=regional",
    ):  # fmt: skip
        assert typed in text
        assert len(shlex.split(typed)) in {2, 4}


def test_where_nothing_fits_every_closed_knob_says_whether_it_would(tmp_path: Path) -> None:
    answer = answered(written(tmp_path, gpu="t4", model="meta-llama/Llama-3.1-8B"))
    assert answer.best is None
    assert answer.sensitivities
    for each in answer.sensitivities:
        assert each.class_ != "quality"  # the relaxations say what these would do
        assert each.fits == (each.duration_s is not None)
        assert each.fits or "does not fit" in each.note


def test_an_answer_of_an_earlier_version_is_still_shown(tmp_path: Path) -> None:
    payload = json.loads(dumps(recommendation_payload(answered(written(tmp_path)))))
    payload["sensitivities"] = [
        {name: each[name] for name in ("key", "value", "duration_s", "cost_usd", "saved_s",
                                       "saved_usd", "memory_bytes", "note", "basis")}
        for each in payload["sensitivities"] if each["class"] == "quality"
    ]  # fmt: skip
    shown = TUNE_REPORT.text(recorded_payload(payload, "here"), width=100, colour=False)
    assert "--set method.rank=8" in shown


def test_what_saves_neither_time_nor_money_nor_memory_has_no_row(tmp_path: Path) -> None:
    payload = recommendation_payload(answered(written(tmp_path)))
    assert payload.best is not None
    before = payload.best.duration_s.p50, payload.best.memory_bytes["total"]
    shown = sections_text([closed_section(payload)], width=200)
    rows, _, rest = shown.partition("at their own best these save neither time nor memory: ")
    idle = 0
    for each in payload.sensitivities:
        if each.class_ == "quality" or not each.fits or each.duration_s is None:
            continue
        saves = each.duration_s < 0.99 * before[0] or each.memory_bytes < 0.99 * before[1]
        idle += not saves
        assert (f"  {each.opens} " in rows) is saves, each.opens
        assert (each.opens in rest) is not saves, each.opens
    assert idle


def test_a_gain_that_another_setting_makes_names_that_setting(tmp_path: Path) -> None:
    """16-bit adapters made room to switch checkpointing off, and were said to take a third less."""
    path = written(
        tmp_path,
        "lengths: {mean: 500}",
        "rtx-4090",
        "{flash_attn: null}",
        "mistralai/Mistral-7B-v0.3",
    )
    path.write_text(path.read_text().replace("kind: lora", "kind: qlora").replace("2048", "1024"))
    path.write_text(path.read_text().replace("epochs: 1", "epochs: 1, objective: orpo"))
    answer = answered(path)
    assert answer.best.config.activation_checkpointing == "full"
    found = next(each for each in answer.sensitivities if each.opens == "--allow adapter_dtype")
    assert found.config["activation_checkpointing"] == "none"
    text = " ".join(opening_words(recommendation_payload(answer), 2).split())
    assert "(adapters in 16 bits; with gradient_checkpointing off)" in text
