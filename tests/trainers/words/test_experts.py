"""How axolotl stores the experts of a mixture: read, refused, written and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import LORA, SOFTWARE, config, job, offer, values_of, with_base

from autotune.app.estimate import estimate
from autotune.app.runs.export import export
from autotune.catalog.models.models import find_model
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import InputError
from autotune.trainers.registry import TRAINERS
from tests.strangers import file, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QLORA: dict[str, Any] = {
    "base_model": "zai-org/GLM-4.7-Flash", "adapter": "qlora", "load_in_4bit": True,
    "lora_target_modules": ["q_proj", "v_proj"], "quantize_moe_experts": True,
}  # fmt: skip
GLM = """\
base_model: zai-org/GLM-4.7-Flash
adapter: {adapter}
load_in_{bits}bit: true
quantize_moe_experts: {switch}
datasets: [{{path: tatsu-lab/alpaca, type: alpaca}}]
lora_r: 32
lora_alpha: 16
lora_target_modules: [q_proj, v_proj, k_proj, o_proj]
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
attn_implementation: flash_attention_2
optimizer: adamw_torch_8bit
bf16: auto
"""


def of_file(tmp_path: Path, bits: int = 4, switch: str = "true") -> Job:
    adapter = "qlora" if bits == 4 else "lora"
    return file(tmp_path / "glm.yml", GLM.format(adapter=adapter, bits=bits, switch=switch))


@pytest.mark.parametrize(("bits", "stated"), [(4, 24.0), (8, 35.0)])
def test_a_file_with_quantised_experts_holds_about_what_its_readme_states(
    tmp_path: Path, bits: int, stated: float
) -> None:
    """examples/glm47-flash of axolotl; without the switch more than a 48 GB card has."""
    peaks = [
        estimate(of_file(tmp_path, bits, switch), fidelity="formula").row.memory_bytes.total / 2**30
        for switch in ("true", "false")
    ]
    assert 0.75 < peaks[0] / stated < 1.25
    assert peaks[1] > 48.0


def test_experts_in_8_bit_are_said_to_be_multiplied_in_fp32(tmp_path: Path) -> None:
    assert "multiplies experts in fp32" in warnings(of_file(tmp_path, 8))
    assert "multiplies experts" not in warnings(of_file(tmp_path, 4))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"lora_target_linear": True}, "lora_target_linear: true"),
        ({"adapter": None}, "needs adapter: lora or qlora"),
        ({"adapter": "lora", "load_in_4bit": False}, "needs load_in_4bit: true or load_in_8bit"),
    ],
)
def test_what_axolotl_refuses_beside_it_is_refused(changed: dict[str, Any], why: str) -> None:
    assert TRAINERS["axolotl"].read(QLORA, "a.yml").quantised_experts
    with pytest.raises(InputError, match=why):
        TRAINERS["axolotl"].read({**QLORA, **changed}, "a.yml")
    off = {**QLORA, **changed, "quantize_moe_experts": False}
    assert not TRAINERS["axolotl"].read(off, "a.yml").quantised_experts


def mixture(**software: Any) -> Job:
    own = replace(SOFTWARE, **software)
    model = find_model("allenai/OLMoE-1B-7B-0924")
    return job(with_base(LORA, "nf4"), model=model, software=own)


def test_axolotl_is_written_with_the_switch_and_reads_it_back() -> None:
    switched = mixture(quantised_experts=True)
    values = values_of("axolotl", export("axolotl", switched, offer(), config()))
    assert values["quantize_moe_experts"] is True
    assert TRAINERS["axolotl"].read(values, "axolotl.yml").quantised_experts
    plain = values_of("axolotl", export("axolotl", mixture(), offer(), config()))
    assert "quantize_moe_experts" not in plain
    linear = mixture(linear_experts=True)
    values = values_of("axolotl", export("axolotl", linear, offer(), config()))
    assert TRAINERS["axolotl"].read(values, "axolotl.yml").linear_experts
    with pytest.raises(InputError, match="has no quantize_moe_experts"):
        export("axolotl@0.14.0", switched, offer(), config())


@pytest.mark.parametrize("target", ["hf", "trl", "llamafactory"])
def test_a_format_that_quantises_no_experts_says_so(target: str) -> None:
    def told(own: Job) -> bool:
        notes = export(target, own, offer(), config()).notes
        return any(isinstance(note, Decisive) and "experts stay" in note for note in notes)

    assert told(mixture(quantised_experts=True))
    assert not told(mixture())
