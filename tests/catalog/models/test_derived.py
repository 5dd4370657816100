"""Fine-tunes and copies: whose shape a name says that a model has, and where it says nothing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_line
from autotune.catalog.models.derived import derived_names, derived_of, stored_by_name
from autotune.catalog.models.models import find_model, load_models
from autotune.catalog.tables import DATA, read_rows
from autotune.cost.parameters import parameter_count
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No hub but an empty cache of one."""
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def job_of(model: str, **changes: str) -> Job:
    stated = {"model": model, "data.rows": 100}
    return jobs_of_line(Overrides(gpus=("h100",), set_values=changes, stated=stated))[0].job


def assumed(job: Job, key: str) -> list[str]:
    return [f"{item.value} {item.why}" for item in job.assumed if item.key == key]


# Parameters as the safetensors index on each model's page counts them.
@pytest.mark.parametrize(
    ("name", "base", "parameters"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "Qwen/Qwen2.5-1.5B", 1_777_088_000),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "Qwen/Qwen2.5-7B", 7_615_616_512),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "Qwen/Qwen2.5-14B", 14_770_033_664),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B", 32_763_876_352),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("DeepSeek-R1-Distill-Llama-8B", "meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("HuggingFaceH4/zephyr-7b-beta", "mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("teknium/OpenHermes-2.5-Mistral-7B", "mistralai/Mistral-7B-v0.1", 7_241_748_480),
        ("codellama/CodeLlama-7b-hf", "meta-llama/Llama-2-7b-hf", 6_738_546_688),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B", 4_022_468_096),
    ],
)
def test_a_fine_tune_has_the_shape_of_its_base_and_its_own_size(
    name: str, base: str, parameters: int
) -> None:
    model = find_model(name)
    assert (model.shape_of, model.stored_as) == (base, "")
    assert model.name.endswith(name)
    assert "/" in model.name
    assert parameter_count(model) == parameters


def test_every_shipped_fine_tune_is_of_a_model_of_the_catalogue() -> None:
    assert len(derived_names()) > 60
    for name in derived_names():
        model = find_model(name)
        assert model.name == name
        assert model.shape_of
        assert find_model(model.shape_of).shape_of == ""
        assert "entered 2026-" in model.source


@pytest.mark.parametrize(
    ("name", "plain", "stored"),
    [
        ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "Qwen/Qwen2.5-7B-Instruct", "nf4"),
        ("unsloth/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", ""),
        ("unsloth/Meta-Llama-3.1-8B-unsloth-bnb-4bit", "meta-llama/Meta-Llama-3.1-8B", "nf4"),
        ("unsloth/llama-3-8b-Instruct-bnb-4bit", "unsloth/llama-3-8b-Instruct", "nf4"),
        ("unsloth/mistral-7b-bnb-4bit", "mistralai/Mistral-7B-v0.1", "nf4"),
        ("unsloth/DeepSeek-R1-Distill-Qwen-7B-unsloth-bnb-4bit",
         "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "nf4"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-BNB-NF4",
         "meta-llama/Meta-Llama-3.1-8B-Instruct", "nf4"),
        ("NousResearch/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B", ""),
        ("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", "mistralai/Mistral-7B-Instruct-v0.2", "gptq"),
        ("TheBloke/Llama-2-7B-AWQ", "meta-llama/Llama-2-7b-hf", "awq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct", "gptq"),
        ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B", "fp8"),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "meta-llama/Meta-Llama-3.1-8B-Instruct",
         "gguf"),
        ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", "meta-llama/Meta-Llama-3.1-8B-Instruct",
         "mlx"),
    ],
)  # fmt: skip
def test_a_copy_is_the_model_that_its_name_says(name: str, plain: str, stored: str) -> None:
    model = find_model(name)
    assert (model.name, model.stored_as) == (name, stored)
    assert find_model(plain).name == model.plain_name or model.plain_name == plain
    assert parameter_count(model) == parameter_count(find_model(plain))


@pytest.mark.parametrize(
    "name",
    [
        "someone/Qwen2.5-7B-Instruct",  # anybody may call anything so
        "someone/Qwen2.5-7B-Instruct-GPTQ",
        "unsloth/nothing-like-it-bnb-4bit",
        "unsloth/Qwen2.5-7B-Instruct-128K",
        "NousResearch/Hermes-2-Theta-Llama-3-8B",  # its vocabulary is another
        "TheBloke/Qwen2.5-7B-Instruct",  # without a suffix it would be its own
    ],
)
def test_a_name_that_proves_nothing_is_unknown_with_those_close_to_it(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_model(name)
    assert "unknown model" in caught.value.message
    assert "has the shape of its base: name that one" in str(caught.value.hint)


def test_what_a_name_was_taken_to_mean_is_listed_as_assumed() -> None:
    job = job_of("unsloth/Qwen2.5-7B-Instruct-unsloth-bnb-4bit")
    (said,) = assumed(job, "model.shape")
    assert said.startswith("Qwen/Qwen2.5-7B-Instruct a copy of Qwen/Qwen2.5-7B-Instruct with")
    assert "some of its layers stay in 16 bit" in said
    assert job.method.base == "nf4"
    assert "stores its weights so" in assumed(job, "method.base")[0]
    fine_tune = job_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B")
    assert "config.json published at huggingface.co" in assumed(fine_tune, "model.shape")[0]
    assert assumed(job_of("Qwen/Qwen2.5-7B-Instruct"), "model.shape") == []


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "16bit"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "nf4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "16bit"),
    ],
)
def test_a_stated_base_has_the_last_word_and_takes_the_original(name: str, base: str) -> None:
    job = job_of(name, **{"method.base": base})
    assert (job.model.name, job.method.base) == ("Qwen/Qwen2.5-7B-Instruct", base)
    assert any(f"method.base {base} is stated" in said for said in assumed(job, "model"))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("LLM-Research/Meta-Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("AI-ModelScope/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-Instruct-v0.2"),
        ("ZhipuAI/GLM-4-9B-0414", "zai-org/GLM-4-9B-0414"),
        ("01ai/Yi-1.5-6B-Chat", "01-ai/Yi-1.5-6B-Chat"),
        ("CohereLabs/c4ai-command-r7b-12-2024", "CohereForAI/c4ai-command-r7b-12-2024"),
        ("unsloth/gpt-oss-20b-BF16", "openai/gpt-oss-20b"),
        ("unsloth/Qwen3.6-27B", "Qwen/Qwen3.6-27B"),
    ],
)
def test_an_organisation_of_copies_or_of_another_hub_has_the_plain_model(
    name: str, plain: str
) -> None:
    model, original = find_model(name), find_model(plain)
    assert (model.plain_name, model.stored_as) == (plain, "")
    assert model.fingerprint == original.fingerprint


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "is GGUF, a format to run models",
         "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", "is MLX", "meta-llama/Meta-Llama-3.1-8B"),
        ("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", "quantised by gptq",
         "mistralai/Mistral-7B-Instruct-v0.2"),
        ("TheBloke/Llama-2-70B-GPTQ", "quantised by gptq", "meta-llama/Llama-2-70b-hf"),
    ],
)  # fmt: skip
def test_a_copy_that_cannot_be_trained_names_its_original(name: str, says: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        job_of(name)
    assert says in caught.value.message
    assert hint in str(caught.value.hint)


def test_a_job_assumes_the_shape_of_a_family_that_is_not_known(tmp_path: Path) -> None:
    config = json.loads(find_model("meta-llama/Llama-3.2-1B").hf_config)
    config |= {"model_type": "newer", "architectures": ["NewerForCausalLM"], "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(config | {"scale_emb": 12}))
    (said,) = assumed(job_of(str(tmp_path)), "model.shape")
    assert said.startswith("Llama ")
    assert said.endswith("family newer is not known and was read as Llama-like, without scale_emb")


def test_full_fine_tuning_of_a_quantised_copy_names_its_original() -> None:
    with pytest.raises(InputError) as caught:
        job_of("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", **{"method.kind": "full"})
    assert "full fine-tuning cannot train them" in caught.value.message
    assert "Qwen/Qwen2.5-7B-Instruct," in str(caught.value.hint)


def test_the_models_own_config_in_the_hubs_cache_wins_over_its_name(hub: Path) -> None:
    snapshot = hub / "models--unsloth--Qwen2.5-7B-Instruct-bnb-4bit" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    config = json.loads(find_model("Qwen/Qwen2.5-7B-Instruct").hf_config)
    nf4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config |= {"num_hidden_layers": 4, "quantization_config": nf4}
    (snapshot / "config.json").write_text(json.dumps(config))
    model = find_model("unsloth/Qwen2.5-7B-Instruct-bnb-4bit")
    assert (model.num_layers, model.stored_as, model.shape_of) == (4, "nf4", "")
    assert model.plain_name == "Qwen/Qwen2.5-7B-Instruct"


def test_names_that_say_nothing_of_storage_are_plain() -> None:
    for name in (*load_models(), "x/Phi-3-mini-4k-instruct", "x/Qwen2.5-14B-Instruct-1M"):
        assert stored_by_name(name) == "", name
    assert derived_of("nothing", lambda _: None) is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "linear-attention layers"),
        ("google/gemma-3n-E4B-it", "embeddings for each layer"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "narrow copy of the stream"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "sparse attention"),
        ("facebook/opt-350m", "norms after its layers"),
        ("ai21labs/AI21-Jamba-Reasoning-3B", "state-space layers between"),
        ("microsoft/Phi-3.5-MoE-instruct", "adds noise while it trains"),
    ],
)
def test_a_model_of_a_kind_that_is_not_described_is_refused_by_its_name_with_the_kind(
    name: str, what: str
) -> None:
    with pytest.raises(InputError, match=f"{what}.*which this version cannot describe") as refused:
        find_model(name)
    assert "source" not in refused.value.hint, "it is in the table"


def _undescribed(name: str) -> list[str]:
    rows = read_rows(DATA / "undescribed_models.csv")
    return [row["what"] for row in rows if re.fullmatch(row["names"], name, re.IGNORECASE)]


def test_no_pattern_of_undescribed_kinds_has_a_name_that_the_catalogue_describes() -> None:
    known = {*load_models(), *derived_names()}
    assert {name for name in known if _undescribed(name.rpartition("/")[2])} == set()


@pytest.mark.parametrize(
    "name",
    [
        "DeepSeek-R1-Distill-Qwen-7B", "DeepSeek-R1-Distill-Llama-70B", "DeepSeek-R1-0528-Qwen3-8B",
        "DeepSeek-R1-Distill-Qwen-7B-GRPO", "DeepSeek-R1-Medical-Llama-8B",
        "nemotron-3-8b-base-4k", "granite-4.0-micro", "granite-4.0-350m", "GLM-4-9B-0414",
        "Qwen3-8B-sft", "gemma-3-4b-it", "opt-2.7b", "Llama-3.1-Nemotron-70B-Instruct-HF",
    ],
)  # fmt: skip
def test_a_plain_decoder_whose_name_resembles_an_undescribed_kind_is_not_taken_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _undescribed(name) == []
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    with pytest.raises(InputError, match="unknown model"):
        find_model(f"nobody-here/{name}-of-my-own")


def test_a_source_names_what_was_read_and_no_file_that_nobody_opened() -> None:
    document = json.loads((DATA / "models.json").read_text(encoding="utf-8"))["models"]
    late = [(e["as_of"], e["source"]) for e in document]
    late += [(r["entered"], r["source"]) for r in read_rows(DATA / "derived_models.csv")]
    late += [(r["entered"], r["source"]) for r in read_rows(DATA / "undescribed_models.csv")]
    assert [s for day, s in late if day >= "2026-11-23" and "config.json published" in s] == []


@pytest.mark.parametrize(
    ("name", "plain", "stored", "parameters"),
    [
        ("axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16",
         "meta-llama/Llama-4-Scout-17B-16E", "nf4", None),
        ("unsloth/Magistral-Small-2509", "mistralai/Magistral-Small-2509", "", 23_572_403_200),
        ("unsloth/functiongemma-270m-it", "google/functiongemma-270m-it", "", 268_098_176),
        ("mistral-community/Mixtral-8x22B-v0.1", "mistralai/Mixtral-8x22B-v0.1", "", None),
        ("alignment-handbook/zephyr-7b-sft-full", "mistralai/Mistral-7B-v0.1", "", 7_241_732_096),
        ("bigscience/bloom", "bigscience/bloomz", "", 176_247_271_424),
        ("distilgpt2", "distilbert/distilgpt2", "", 81_912_576),
        ("unsloth/GLM-4-9B-0414", "THUDM/GLM-4-9B-0414", "", 9_400_279_040),
        ("Yi-1.5-34B-Chat", "01-ai/Yi-34B", "", 34_388_917_248),
        ("baichuan-inc/Baichuan-7B", "baichuan-inc/Baichuan-7B", "", 7_000_559_616),
        ("TheBloke/WizardCoder-15B-V1.0-GPTQ", "WizardLM/WizardCoder-15B-V1.0", "gptq", None),
    ],
)  # fmt: skip
def test_names_that_real_files_use_resolve_to_the_model_whose_shape_they_have(
    name: str, plain: str, stored: str, parameters: int | None
) -> None:
    model = find_model(name)
    assert model.stored_as == stored
    assert parameter_count(model) == parameter_count(find_model(plain))
    assert parameters is None or parameter_count(model) == parameters


@pytest.mark.parametrize(
    ("folder", "base"),
    [
        ("/data/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("./models/Llama-3-8B", "meta-llama/Llama-3-8B"),
        ("models/Llama-3.1-8B-Instruct/", "meta-llama/Llama-3.1-8B-Instruct"),
        ("$MODELS/Qwen2_5-7B", "Qwen/Qwen2.5-7B"),
        ("~/hf/hub/zephyr-7b-beta", "HuggingFaceH4/zephyr-7b-beta"),
    ],
)
def test_a_folder_of_another_machine_is_the_model_that_it_is_called_after(
    folder: str, base: str
) -> None:
    found = find_model(folder)
    assert (found.name, found.shape_of) == (folder, base)
    assert parameter_count(found) == parameter_count(find_model(base))
    assert "no such folder here" in found.source


@pytest.mark.parametrize(
    "folder",
    ["/data/my-sft", "./llama3-8b-sft", "models/$NAME", "LLM-Models/Qwen2.5-7B-Instruct-x"],
)
def test_a_folder_called_after_no_model_is_unknown(folder: str) -> None:
    with pytest.raises(InputError, match="unknown model"):
        find_model(folder)


def test_a_folder_that_is_here_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "Qwen2.5-7B").mkdir()
    with pytest.raises(InputError, match=r"config\.json"):
        find_model("./Qwen2.5-7B", tmp_path)


def test_no_entry_of_the_catalogue_is_called_after_a_copy() -> None:
    assert not [name for name in load_models() if stored_by_name(name)]
