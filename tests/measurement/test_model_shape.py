"""Shapes from Hugging Face configurations, and the one line where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_opt.errors import InputError, UsageError
from ladder_opt.measurement.model_shape import ModelShape, read_model_shape

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GRANITE = LLAMA | {
    "model_type": "granite",
    "num_hidden_layers": 40,
    "attention_multiplier": 0.0078125,
    "dtype": "float16",
}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4096, "head_dim": 128}
GEMMA = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 26,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "torch_dtype": "float32",
}


def shape_of(folder: Path, config: dict[str, Any]) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_shape(folder)


def test_llama(tmp_path: Path) -> None:
    assert shape_of(tmp_path, LLAMA) == ModelShape(
        num_query_heads=32,
        num_kv_heads=8,
        head_size=128,
        layers=32,
        dtype="bfloat16",
        max_position_embeddings=131072,
    )
    assert read_model_shape(tmp_path / "config.json") == read_model_shape(tmp_path)


def test_without_kv_heads_every_query_head_has_its_own(tmp_path: Path) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert shape_of(tmp_path, config).num_kv_heads == 32


def test_granite_scales_by_its_multiplier(tmp_path: Path) -> None:
    found = shape_of(tmp_path, GRANITE)
    assert (found.layers, found.dtype, found.score_scale) == (40, "float16", 0.0078125)


@pytest.mark.parametrize("layer_types", [None, ["full_attention", "sliding_attention"] * 16])
def test_mistral_slides_in_every_layer_unless_its_layers_say_otherwise(
    tmp_path: Path, layer_types: list[str] | None
) -> None:
    found = shape_of(tmp_path, MISTRAL | ({"layer_types": layer_types} if layer_types else {}))
    assert (found.sliding_layers, found.sliding_window) == (16 if layer_types else 32, 4096)


def test_mistral_without_a_window(tmp_path: Path) -> None:
    found = shape_of(tmp_path, MISTRAL | {"sliding_window": None})
    assert (found.sliding_layers, found.sliding_window) == (0, None)


def test_gemma_caps_and_slides_in_every_other_layer(tmp_path: Path) -> None:
    found = shape_of(tmp_path, GEMMA)
    assert (found.logits_soft_cap, found.head_size, found.score_scale) == (50.0, 256, 1 / 16)
    assert (found.layers, found.sliding_layers, found.sliding_window) == (26, 13, 4096)


def test_a_language_model_within_another(tmp_path: Path) -> None:
    text = GEMMA | {"model_type": "gemma3_text", "attn_logit_softcapping": None, "sliding_window": 1024}
    del text["torch_dtype"]
    config = {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}
    found = shape_of(tmp_path, config)
    assert (found.logits_soft_cap, found.dtype) == (None, "bfloat16")
    assert (found.layers, found.sliding_layers) == (26, 22)  # each sixth sees everything


def test_qwen_slides_where_it_says_so(tmp_path: Path) -> None:
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert shape_of(tmp_path, qwen | {"use_sliding_window": False}).sliding_layers == 0
    assert shape_of(tmp_path, qwen | {"use_sliding_window": True}).sliding_layers == 4


def test_layers_without_attention_do_not_count(tmp_path: Path) -> None:
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 8
    assert shape_of(tmp_path, LLAMA | {"layer_types": kinds}).layers == 8


def test_older_names(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024}
    found = shape_of(tmp_path, config)
    assert (found.num_query_heads, found.num_kv_heads, found.head_size, found.layers) == (12, 12, 64, 12)
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_kv_heads": 1}
    found = shape_of(tmp_path, falcon | {"num_hidden_layers": 32})
    assert (found.num_query_heads, found.num_kv_heads, found.head_size) == (71, 1, 64)


@pytest.mark.vllm
@pytest.mark.parametrize("config", [LLAMA, GRANITE, MISTRAL, GEMMA], ids=lambda each: each["model_type"])
def test_transformers_reads_the_same(tmp_path: Path, config: dict[str, Any]) -> None:
    from transformers import AutoConfig

    found = shape_of(tmp_path, config)
    theirs = AutoConfig.for_model(**config)
    assert found.num_query_heads == theirs.num_attention_heads
    assert found.num_kv_heads == theirs.num_key_value_heads
    assert found.head_size == (getattr(theirs, "head_dim", None) or theirs.hidden_size // 32)
    assert found.layers == theirs.num_hidden_layers
    kinds = getattr(theirs, "layer_types", None)
    if kinds:
        assert found.sliding_layers == kinds.count("sliding_attention")


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({"num_attention_heads": "many"}, "num_attention_heads", "found 'many', expected a whole number"),
        ({"num_attention_heads": None}, "", "found no num_attention_heads, expected a Hugging Face"),
        ({"num_key_value_heads": 7}, "num_kv_heads", "found 7, expected a divisor of num_query_heads 32"),
        ({"kv_lora_rank": 512}, "kv_lora_rank", "found multi-head latent attention, expected a decoder"),
        ({"layer_types": ["full_attention"]}, "layer_types", "found 1 entries, expected one for each of 32"),
        ({"layer_types": ["mamba"] * 32}, "layer_types", "found no attention layer, expected one or more"),
        ({"sliding_window": -1}, "sliding_window", "found -1, expected a whole number of tokens"),
        ({"attention_multiplier": "x"}, "attention_multiplier", "found 'x', expected a number"),
    ],
)
def test_what_is_no_such_model(tmp_path: Path, change: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        shape_of(tmp_path, LLAMA | change)
    place = f"{tmp_path}/config.json: " + (f"{where}: " if where else "")
    assert str(error.value).startswith(place + message)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_model_shape(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/config.json: found No such file or directory, expected a readable file"
    )


def test_options_win_and_sliding_layers_keep_their_share(tmp_path: Path) -> None:
    found = shape_of(tmp_path, GEMMA).with_options(layers=4, dtype="bfloat16")
    assert (found.layers, found.sliding_layers, found.dtype, found.head_size) == (4, 2, "bfloat16", 256)
    with pytest.raises(UsageError) as error:
        found.with_options(num_kv_heads=3)
    assert str(error.value) == "num_kv_heads: found 3, expected a divisor of num_query_heads 8"
