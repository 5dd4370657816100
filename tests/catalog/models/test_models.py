from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.catalog import hub
from autotune.catalog.models import models
from autotune.catalog.models.config_values import LATENT
from autotune.catalog.models.families import FAMILIES
from autotune.catalog.models.hf_config import model_from_config, parse_config, read_config_file
from autotune.catalog.models.models import find_model, load_models
from autotune.catalog.models.undescribed import READ_AS_LLAMA
from autotune.catalog.tables import DATA
from autotune.cost.parameters import parameter_count
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from autotune.domain.model import Model

SHARED = Path(__file__).parents[4] / "shared" / "data"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def read(**changes: Any) -> Model:
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    return model_from_config(config, "m", "test")


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")


# --- the catalogue ---------------------------------------------------------------------------


PUBLISHED = {
    entry["name"]: int(entry["n_parameters"])
    for entry in json.loads((DATA / "models.json").read_text(encoding="utf-8"))["models"]
    if "n_parameters" in entry
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_parameter_count_is_the_published_one(name: str) -> None:
    assert parameter_count(load_models()[name]) == PUBLISHED[name]


# Classes that come with the model, whose weights people convert to Llama's by renaming them.
# Source: huggingface.co/Bingsu/exaone-3.0-7.8b-it, bartowski/internlm2-7b-llama ("7.74B params").
AS_LLAMA = {
    "LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct": 7.8e9,
    "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct": 2.4e9,
    "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct": 7.8e9,
    "LGAI-EXAONE/EXAONE-3.5-32B-Instruct": 32e9,
    "internlm/internlm-chat-7b": 7.3e9,
    "internlm/internlm-chat-20b": 20e9,
    "internlm/internlm2-chat-7b": 7.74e9,
    "internlm/internlm2_5-7b-chat": 7.74e9,
    "internlm/internlm2_5-20b-chat": 19.86e9,
}


@pytest.mark.parametrize("name", AS_LLAMA)
def test_a_model_that_converts_to_llama_has_its_parameters(name: str) -> None:
    model = load_models()[name]
    converted = read(
        num_hidden_layers=model.num_layers, hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads, num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim, intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size, tie_word_embeddings=model.tied_head,
        attention_bias=model.qkv_bias,
    )  # fmt: skip
    assert parameter_count(model) == parameter_count(converted)
    assert parameter_count(model) == pytest.approx(AS_LLAMA[name], rel=0.005)
    assert model.remote_code


def test_the_first_internlm_2_was_published_under_the_older_name() -> None:
    sizes = {"model_type": "internlm", "rms_norm_eps": ..., "bias": False}
    model = read(architectures=["InternLM2ForCausalLM"], **sizes)
    assert (model.family, model.linears[0].name) == ("internlm2", "wqkv")
    assert read(architectures=["InternLMForCausalLM"], **sizes).family == "internlm"


def test_every_count_is_compared_with_a_published_one_or_with_the_class() -> None:
    remote = {name for name, model in load_models().items() if model.remote_code}
    others = {"XiaomiMiMo/MiMo-7B-Base", "THUDM/glm-4-9b-chat"}
    assert remote - set(PUBLISHED) - others == set(AS_LLAMA)
    assert len(PUBLISHED) > 0.4 * len(load_models())


def test_every_entry_is_sourced_and_no_name_is_used_twice() -> None:
    entries = json.loads((DATA / "models.json").read_text())["models"]
    names = [name.casefold() for e in entries for name in (e["name"], *e["aliases"])]
    assert len(names) == len(set(names))
    assert len(entries) >= 120
    for entry in entries:
        assert entry["source"]
        assert "2026-11-20" <= entry["as_of"] <= f"{datetime.now(tz=UTC).date()}"
        assert entry["config"]["model_type"] in FAMILIES


@pytest.mark.parametrize(
    "name",
    [
        "huggyllama/llama-7b", "huggyllama/llama-13b", "meta-llama/Llama-2-13b-hf",
        "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.3-70B-Instruct",
        "Qwen/Qwen2-0.5B", "Qwen/Qwen2.5-32B", "Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B",
        "google/gemma-2b", "google/gemma-2-27b", "google/gemma-3-27b-it", "microsoft/phi-4",
        "microsoft/Phi-3-medium-4k-instruct", "HuggingFaceTB/SmolLM2-360M",
        "mistralai/Mistral-Nemo-Base-2407", "mistralai/Mixtral-8x22B-v0.1",
        "openai-community/gpt2-xl", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    ],
)  # fmt: skip
def test_the_models_people_fine_tune_are_there(name: str) -> None:
    assert find_model(name).name == name


@pytest.mark.usefixtures("_offline")
def test_every_decoder_of_the_public_measurements_is_described() -> None:
    path = SHARED / "models.csv"
    if not path.is_file():
        pytest.skip("the table of measured models is not beside this repository")
    # No sizes known, hybrids, latent attention, encoders and encoder-decoders.
    left_out = {
        "ibm-research/moe-7b-1b-active-shared-experts", "ibm-granite/granite-4.0-tiny-preview",
        "moonshotai/Kimi-K2-Base", "Nemotron_3_Super", "Nemotron_3_Nano", "Nemotron_3_Ultra",
        "Nemotron_3_5_Lightning", "DeepSeekV4 Flash", "Nemotron-22B", "bert-base-uncased",
        "bert-large-uncased", "t5-base", "bigscience/T0_3B", "bigscience/mt0-xxl",
    }  # fmt: skip
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        if row["model_id"] in left_out:
            with pytest.raises(InputError):
                find_model(row["model_id"])
            continue
        model = find_model(row["model_id"])
        if not row["n_layers"]:  # the table has no sizes of it
            continue
        assert (model.num_layers, model.hidden_size) == (int(row["n_layers"]), int(row["hidden"]))
        assert (model.num_attention_heads, model.num_kv_heads) == (
            int(row["n_heads"]),
            int(row["n_kv_heads"]),
        )
        if row["head_dim"]:  # of latent attention the table has none
            assert model.head_dim == int(row["head_dim"])
        assert model.intermediate_size == int(row["intermediate"])
        assert model.tied_head is (row["tied_embeddings"] == "yes")
        assert model.num_experts == int(row["n_experts"] or 0)
        if row["vocab"]:
            assert model.vocab_size == int(row["vocab"])


def test_kimi_k2_is_of_deepseeks_family_by_another_name() -> None:
    kimi = find_model("moonshotai/Kimi-K2-Instruct")
    config = json.loads(kimi.hf_config) | {"model_type": "kimi_k2"}
    assert model_from_config(config, kimi.name, "test").fingerprint == kimi.fingerprint
    assert parameter_count(kimi) == pytest.approx(1.03e12, rel=0.005)


def test_a_decoder_of_an_unknown_family_says_what_was_not_read_of_it() -> None:
    model = read(model_type="newer", embedding_multiplier=12.0, mtp_num_layers=1, use_cache=True)
    assert model.source.endswith("read as Llama-like, without embedding_multiplier, mtp_num_layers")
    assert read(model_type="newer").source.endswith(READ_AS_LLAMA)
    assert READ_AS_LLAMA not in read().source


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"num_experts": 8, "moe_k": 1}, r"it has experts \(moe_k, num_experts\)"),
        ({"img_processor": {"name": "clip"}}, r"sees or hears \(img_processor\)"),
        ({"rms_norm_eps": ..., "layer_norm_eps": 1e-5}, "it has no rms_norm_eps"),
        ({"architectures": ["NewerModel"]}, "name no ...ForCausalLM"),
    ],
)
def test_an_unknown_family_that_is_not_llama_like_is_told_what_keeps_it_from_that(
    changes: dict[str, Any], lacks: str
) -> None:
    with pytest.raises(InputError, match=lacks) as refused:
        read(model_type="newer", **changes)
    assert "say so as model_type in a copy of its config.json: llama, mistral" in str(
        refused.value.hint
    )


# --- finding a model -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("META-LLAMA/LLAMA-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpt2", "openai-community/gpt2"),
        ("llama-7b", "huggyllama/llama-7b"),
        (" Qwen2-0.5B ", "Qwen/Qwen2-0.5B"),
        ("unsloth/llama-3-8b", "unsloth/llama-3-8b"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.1"),
    ],
)
def test_a_name_is_found_in_any_case_and_without_its_organisation(text: str, name: str) -> None:
    assert find_model(text).name == name


def test_an_alias_has_the_shape_of_the_model_that_it_stands_for() -> None:
    alias, model = find_model("NousResearch/Llama-2-70b-hf"), find_model("Llama-2-70b-hf")
    assert alias.linears == model.linears
    assert parameter_count(alias) == parameter_count(model)


@pytest.mark.parametrize("form", ["folder", "file", "relative", "bare"])
def test_a_folder_or_file_with_a_config_is_a_model(tmp_path: Path, form: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(LLAMA))
    text = {
        "folder": str(tmp_path / "mine"),
        "file": str(tmp_path / "mine" / "config.json"),
        "relative": "./mine",
        "bare": "mine",
    }[form]
    model = find_model(text, tmp_path)
    assert (model.name, model.hidden_size, model.family) == (text, 64, "llama")
    assert "config.json" in model.source


@pytest.mark.usefixtures("_offline")
def test_an_unknown_model_names_the_closest_and_how_to_add_one() -> None:
    with pytest.raises(InputError, match=r"did you mean .*Qwen/Qwen2") as caught:
        find_model("Qwen/Qwen2-0.6B")
    assert "config.json" in (caught.value.hint or "")
    assert "AUTOTUNE_OFFLINE" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "  ", "a\0b", "./nowhere", "x.json", "a/b/c", "../x/y", "?"])
def test_what_is_no_model_is_an_input_error_without_asking_the_hub(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "fetch_config", lambda _: pytest.fail("asked the hub"))
    with pytest.raises(InputError):
        find_model(text)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-VL-7B-Instruct", "google/paligemma-3b"])
def test_no_text_model_is_offered_for_one_that_sees(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    with pytest.raises(InputError, match="unknown model") as refused:
        find_model(name)
    assert "did you mean" not in refused.value.message
    assert "reads pictures" in refused.value.message
    assert "config.json" in str(refused.value.hint)


def test_a_hub_id_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(name: str) -> bytes:
        asked.append(name)
        return json.dumps(LLAMA).encode()

    monkeypatch.delenv("AUTOTUNE_OFFLINE", raising=False)
    monkeypatch.setattr(models, "fetch_config", fetch)
    model = find_model("someone/their-model")
    assert asked == ["someone/their-model"]
    assert model.source.startswith("https://huggingface.co/someone/their-model/")


def test_a_hub_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()
    monkeypatch.delenv("AUTOTUNE_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "_download", lambda *_: str(release.wait(30)))
    monkeypatch.setattr(hub, "ANSWER_S", 0.05)
    with pytest.raises(InputError, match="unknown model") as caught:
        find_model("someone/slow")
    release.set()
    assert "did not answer" in (caught.value.hint or "")


# --- reading a config ------------------------------------------------------------------------


def test_the_shipped_collection_of_real_configs_is_read_or_refused() -> None:
    folder = SHARED / "hf_configs"
    if not folder.is_dir():
        pytest.skip("the collection of real configs is not beside this repository")
    counts, refused = {}, {}
    for path in sorted(folder.glob("*.json")):
        try:
            model = model_from_config(read_config_file(path), path.stem, str(path))
            counts[path.stem.partition("--")[2]] = parameter_count(model)
        except InputError as error:
            refused[path.stem.partition("--")[2]] = error.message
    assert sorted(refused) == [
        "GLM-5",
        "Llama-3_3-Nemotron-Super-49B-v1",
    ]
    assert counts["gemma-4-26B-A4B"] == parameter_count(find_model("google/gemma-4-26B-A4B-it"))
    assert counts["Meta-Llama-3.1-405B"] == 405_853_388_800
    assert counts["Qwen3-VL-8B-Instruct"] == counts["Qwen3-8B"] == 8_190_735_360
    assert counts["gpt-oss-20b"] == 20_914_757_184
    assert counts["Mixtral-8x22B-v0.1"] == 140_620_634_112
    assert counts["DeepSeek-V3"] == 671_026_404_352  # without the layer that predicts a token more
    assert len(counts) == 21


GEMMA_4 = {
    "model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size": 512,
}  # fmt: skip


@pytest.mark.parametrize("places", [("1", "3"), ("01", "03")], ids=["plain", "of one width"])
def test_sizes_by_layer_as_transformers_saves_them_are_those_that_were_published(
    places: tuple[str, str],
) -> None:
    published = {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
    own = {"head_dim": 32, "num_key_value_heads": 1}
    saved = {"per_layer_config": dict.fromkeys(places, own), "attention_k_eq_v": True}
    one, other = (model_from_config({**GEMMA_4, **more}, "m", "t") for more in (published, saved))
    assert one.kinds == other.kinds
    assert parameter_count(one) == parameter_count(other)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"per_layer_config": {"1": {"head_dim": 32}}}, "other sizes for single layers"),
        ({"per_layer_config": {"1": {"head_dim": 32}, "3": {}}}, "other sizes for single layers"),
        ({"per_layer_config": [1]}, "other sizes for single layers"),
        ({"enable_moe_block": True}, "experts beside embeddings of its layers"),
        ({"enable_moe_block": True, "hidden_size_per_layer_input": 0}, "no num_experts"),
        (
            {
                "enable_moe_block": True,
                "hidden_size_per_layer_input": 0,
                "num_experts": 2,
                "top_k_experts": 3,
                "moe_intermediate_size": 8,
            },
            "only 2",
        ),
        ({"use_bidirectional_attention": "all"}, "attention to later tokens"),
        ({"num_kv_shared_layers": 3}, "none before them to share keys"),
        ({"num_kv_shared_layers": "3"}, "must be a whole number"),
        ({"layer_types": ["full_attention"]}, "a kind for each of 4 layers"),
    ],
)
def test_a_gemma_4_that_is_not_described_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        model_from_config({**GEMMA_4, **changes}, "m", "test")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "bert"}, "encoder"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "deepseek_v32", "kv_lora_rank": 512}, "latent attention"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X*"}, "must be a text of M"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": ["M"]}, "must be a text of M"),
        ({"model_type": "nemotron_h"}, "must be a text of M"),
        ({"model_type": "nemotron_h", "layers_block_type": ["mamba", "conv"]}, "kind conv"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*", "n_groups": 7}, "7 groups"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME*", "moe_latent_size": 8},
         "narrow copy of the stream"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME*"}, "no num_local_experts"),
        ({"model_type": "bamba", "mamba_n_heads": 48}, "state-space"),
        ({"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [1, 2]}, "moe_topk"),
        ({"model_type": "llama", "hidden_act": "xielu"}, "xIELU"),
        ({"model_type": "recurrent_gemma", "lru_width": 64}, "recurrent layers"),
        ({"model_type": "diffllama", "lambda_std_dev": 0.1}, "differential attention"),
        ({"model_type": "bamba", "layer_types": ["mamba", "attention"]}, "mamba"),
        ({"model_type": "olmo_hybrid", "linear_num_key_heads": 16}, "linear-attention"),
        ({"model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
          "mlp_only_layers": [1]}, "layers without experts"),
        ({"model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
          "decoder_sparse_step": 2}, "layers without experts"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"model_type": "nemotron-nas", "block_configs": [{}]}, "different shapes"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "projects its embeddings"),
        ({"model_type": "dbrx", "num_experts": 4}, "cannot|not a decoder"),
        ({"model_type": "unheard-of", "architectures": ["XForImageClassification"]}, "not a decod"),
        ({"model_type": ...}, "no model_type"),
        ({"model_type": 3}, "no model_type"),
        ({"model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1,
          "interleave_moe_layer_step": 2}, "mixes dense"),
    ],
)  # fmt: skip
def test_what_the_description_does_not_cover_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        read(**changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    "key",
    ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"],
)
@pytest.mark.parametrize(
    "value", [..., 0, -1, 1.5, float("nan"), float("inf"), "64", True, [64], 10**12, None]
)
def test_a_size_must_be_a_sensible_whole_number(key: str, value: object) -> None:
    with pytest.raises(InputError, match=key):
        read(**{key: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "evenly"),
        ({"hidden_size": 63}, "not a multiple"),
        ({"head_dim": -8}, "head_dim"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "only 2"),
        ({"model_type": "mixtral"}, "num_local_experts"),
        ({"sliding_window": "far"}, "sliding_window"),
        ({"model_type": "mpt", "d_model": 64, "expansion_ratio": 0}, "expansion_ratio"),
    ],
)
def test_sizes_must_fit_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(**changes)


def test_a_complete_unknown_decoder_is_read_as_llama_like_and_says_so() -> None:
    model = read(model_type="newllm", architectures=["NewLLMForCausalLM"])
    assert "Llama-like" in model.source
    assert model.linears == read().linears
    assert model.architecture == "NewLLMForCausalLM"


def test_a_wrapper_is_read_by_its_text_part_and_says_so() -> None:
    wrapped = {"model_type": "some_vl", "text_config": LLAMA, "tie_word_embeddings": True}
    model = model_from_config(wrapped, "m", "test")
    assert "vision part is not counted" in model.source
    assert model.tied_head
    assert model.linears == read().linears


def test_gemma_3_wrappers_take_the_sizes_that_their_class_fills_in() -> None:
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024,
    }  # fmt: skip
    model = model_from_config({"model_type": "gemma3", "text_config": text}, "m", "test")
    assert parameter_count(model) == parameter_count(find_model("google/gemma-3-4b-it"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "not JSON"),
        (b"[1, 2]", "JSON list"),
        (b"null", "JSON NoneType"),
        (b'"llama"', "JSON str"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"model_type: llama", "not JSON"),
    ],
)
def test_a_file_that_is_no_config_is_an_input_error(data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_config(data, "config.json")


def test_a_huge_or_unreadable_file_is_not_read(tmp_path: Path) -> None:
    big = tmp_path / "big.json"
    with big.open("wb") as stream:
        stream.truncate(11_000_000)
    with pytest.raises(InputError, match="stays under"):
        find_model(str(big))
    with pytest.raises(InputError, match="cannot read"):
        find_model(str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="cannot read"):
        find_model(str(tmp_path))  # a folder without config.json


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first_k_dense_replace": 2}, "experts in none of its 2 layers"),
        ({"first_k_dense_replace": None}, "has no first_k_dense_replace"),
        ({"mlp_bias": True}, "biases in the MLPs of a mixture"),
    ],
)
def test_a_mixture_that_cannot_be_described_says_why(changes: dict[str, Any], reason: str) -> None:
    config = {
        **LLAMA, "model_type": "glm4_moe", "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, **changes,
    }  # fmt: skip
    with pytest.raises(InputError, match=reason):
        model_from_config(config, "m", "test")


KEYS = (
    *LLAMA, "architectures", "attention_chunk_size", "attn_config", "bias", "decoder_sparse_step",
    "expansion_ratio", "first_k_dense_replace", "head_dim", "hidden_act",
    "interleave_moe_layer_step", "is_encoder_decoder", "kv_lora_rank", "layer_types", "llm_config",
    "mlp_only_layers", "moe_intermediate_size", "moe_layer_end_index", "moe_layer_interval",
    "moe_layer_start_index", "mlp_layer_types", "q_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "moe_layers", "moe_num_shared_experts", "multi_query",
    "multi_query_group_num", "n_shared_experts", "new_decoder_architecture", "num_experts",
    "num_experts_per_tok", "num_kv_heads", "num_ln_in_parallel_attn", "parallel_attn",
    "shared_expert_intermediate_size", "shared_intermediate_size", "sliding_window", "text_config",
    "tie_word_embeddings", "use_sliding_window", "word_embed_proj_dim", "num_dense_layers",
    "hybrid_override_pattern", "layers_block_type", "mamba_num_heads", "n_groups",
)  # fmt: skip
VALUES = (
    None, True, False, 0, 1, -1, 3, 2.5, float("nan"), float("inf"), 10**30, "x", "", [], [1],
    [[1]], [{}], {}, {"alibi": 0}, {"model_type": "llama"},
)  # fmt: skip


@pytest.mark.parametrize("family", [*FAMILIES, "unheard-of"])
def test_any_value_under_any_key_is_described_or_refused_and_never_crashes(family: str) -> None:
    full = {
        **LLAMA,
        "model_type": family,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 32 if family in LATENT else None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "new_decoder_architecture": True,
        "num_dense_layers": 1,
        "moe_shared_expert_intermediate_size": 32,
        "hybrid_override_pattern": "M*-E" if family == "nemotron_h" else None,
    }
    described = 0
    for key in KEYS:
        for value in VALUES:
            try:
                model = model_from_config({**full, key: value}, "m", "test")
            except InputError:
                continue
            described += 1
            assert parameter_count(model) > 0
    assert described > 0 or family == "unheard-of"
