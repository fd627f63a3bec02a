"""What of a model the batched decode kernel depends on, by hand or from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ladder_opt.arguments import checked
from ladder_opt.errors import InputError, UsageError
from ladder_opt.files import is_folder, read_text
from ladder_opt.validation import load_json_object

DTYPES = ("float32", "bfloat16", "float16")
_MAX_CONFIG_BYTES = 16 << 20
_MOST = {"num_query_heads": 1024, "num_kv_heads": 1024, "head_size": 1024, "layers": 10_000}


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The attention of one model.

    Attributes:
        num_query_heads: query heads of a layer.
        num_kv_heads: its KV heads, a divisor of them.
        head_size: width of a head.
        layers: attention layers that a step runs, the sliding ones counted.
        sliding_layers: of them, those with a sliding window.
        sliding_window: tokens that a query sees there, itself included; None without.
        dtype: of queries and KV pages: float32, bfloat16 or float16.
        scale: of the scores; None for head_size ** -0.5.
        logits_soft_cap: scores become cap * tanh(score / cap); None for no cap.
        max_position_embeddings: the longest sequence that the model takes, tokens; None where it is not said.
    """

    num_query_heads: int = 8
    num_kv_heads: int = 2
    head_size: int = 64
    layers: int = 1
    sliding_layers: int = 0
    sliding_window: int | None = None
    dtype: str = "float32"
    scale: float | None = None
    logits_soft_cap: float | None = None
    max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise UsageError(f"{name}: found {value!r}, expected 1 to {most}")
        if self.num_query_heads % self.num_kv_heads:
            raise UsageError(
                f"num_kv_heads: found {self.num_kv_heads}, expected a divisor of num_query_heads "
                f"{self.num_query_heads}"
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype: found {self.dtype!r}, expected {', '.join(DTYPES)}")
        if (self.sliding_window is None) != (self.sliding_layers == 0):
            raise UsageError(
                f"sliding_window: found {self.sliding_window} with {self.sliding_layers} sliding layers, "
                "expected both or neither"
            )
        if not 0 <= self.sliding_layers <= self.layers:
            raise UsageError(
                f"sliding_layers: found {self.sliding_layers}, expected 0 to the {self.layers} layers"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise UsageError(f"sliding_window: found {self.sliding_window}, expected 1 or more tokens")
        for name in ("scale", "logits_soft_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise UsageError(f"{name}: found {value:g}, expected a number above 0")

    @property
    def score_scale(self) -> float:
        """The scale in use."""
        return self.head_size**-0.5 if self.scale is None else self.scale

    def with_options(
        self,
        *,
        num_query_heads: int | None = None,
        num_kv_heads: int | None = None,
        head_size: int | None = None,
        layers: int | None = None,
        dtype: str | None = None,
    ) -> ModelShape:
        """This shape with what is given in place of its own; sliding layers keep their share.

        Raises:
            UsageError: the outcome is no shape.
        """
        given = {
            name: value
            for name, value in (
                ("num_query_heads", num_query_heads),
                ("num_kv_heads", num_kv_heads),
                ("head_size", head_size),
                ("layers", layers),
                ("dtype", dtype),
            )
            if value is not None
        }
        changes: dict[str, Any] = dict(given)
        if layers is not None and self.sliding_layers:
            changes["sliding_layers"] = max(1, min(layers, round(self.sliding_layers * layers / self.layers)))
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """For files: what has no value is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@checked
def read_model_shape(path: str | Path) -> ModelShape:
    """The shape in a Hugging Face `config.json`, or in the folder that holds one.

    Names and defaults are those of transformers 5 and vLLM 0.28 (`ModelArchConfigConvertorBase`): KV heads
    default to the query heads, the head size to hidden_size // heads (256 in Gemma's configurations); a
    `text_config` is looked into; layers are told apart by `layer_types`, or by what the model type implies.

    Raises:
        InputError: it is no such file, or the model's attention is of another kind.
    """
    path = Path(path)
    file = path / "config.json" if is_folder(path) else path
    text = read_text(file, max_bytes=_MAX_CONFIG_BYTES, what="a model's config.json")
    data = load_json_object(text, path=file, what="a model's config.json")
    return _Config(data, file).shape()


_NAMES = {
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    # vLLM's own order
    "num_key_value_heads": (
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "head_dim": ("head_dim", "hidden_size_per_head"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
_GEMMA_HEAD_DIM = 256
_SLIDING_PATTERN = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6}  # every so-manyth layer sees all tokens
_ALL_SLIDE = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})  # a window there is every layer's
_WINDOW_WHERE_USED = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})  # use_sliding_window says so
_DEFAULT_WINDOW = dict.fromkeys(("mistral", "gemma2", "gemma3_text", "gemma3"), 4096)  # null says none
_SLIDES, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class _Config:
    data: Mapping[str, Any]
    path: Path

    def shape(self) -> ModelShape:
        config = self._text_config()
        for key, what in (
            ("kv_lora_rank", "multi-head latent attention"),
            ("is_encoder_decoder", "an encoder-decoder"),
        ):
            if config.data.get(key):
                raise InputError(
                    what, "a decoder with plain attention (MHA, GQA or MQA)", path=self.path, column=key
                )
        heads = config.whole("num_attention_heads", None)
        kv_heads = config.whole("num_key_value_heads", heads)
        layers = config.whole("num_hidden_layers", None)
        sliding, attending, window = config.windows(layers)
        cap = config.number("attn_logit_softcapping")
        try:
            return ModelShape(
                num_query_heads=heads,
                num_kv_heads=kv_heads,
                head_size=config.head_size(heads),
                layers=attending,
                sliding_layers=sliding,
                sliding_window=window,
                dtype=config.dtype(self.data),
                scale=config.scale(),
                logits_soft_cap=cap,
                max_position_embeddings=config.optional_whole("max_position_embeddings"),
            )
        except UsageError as error:
            name, _, rest = str(error).partition(": found ")
            found, _, expected = rest.partition(", expected ")
            raise InputError(found, expected, path=self.path, column=name) from None

    def _text_config(self) -> _Config:
        """Models of several kinds of input keep the language model's settings in a part of their own."""
        inner = self.data.get("text_config")
        return _Config(inner, self.path) if isinstance(inner, dict) else self

    def optional_whole(self, name: str) -> int | None:
        for key in _NAMES[name]:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(repr(value)[:60], "a whole number", path=self.path, column=key)
            if value:
                return value
        return None

    def whole(self, name: str, default: int | None) -> int:
        value = self.optional_whole(name)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"no {name}", "a Hugging Face config.json of a language model", path=self.path)
        return value

    def number(self, key: str) -> float | None:
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(repr(value)[:60], "a number", path=self.path, column=key)
        return float(value) or None

    def model_type(self) -> str:
        return str(self.data.get("model_type", ""))

    def head_size(self, heads: int) -> int:
        found = self.optional_whole("head_dim")
        if found is not None:
            return found
        if self.model_type().startswith("gemma"):
            return _GEMMA_HEAD_DIM
        return self.whole("hidden_size", None) // heads

    def scale(self) -> float | None:
        """Granite's `attention_multiplier` is the scale; Gemma's `query_pre_attn_scalar` its power -0.5."""
        multiplier = self.number("attention_multiplier")
        if multiplier is not None:
            return multiplier
        scalar = self.number("query_pre_attn_scalar")
        return None if scalar is None or scalar <= 0 else scalar**-0.5

    def dtype(self, outer: Mapping[str, Any]) -> str:
        """That of the file; bfloat16 where it says none, or one that batched decode does not take."""
        for data in (self.data, outer):
            for key in ("dtype", "torch_dtype"):
                name = data.get(key)
                if isinstance(name, str) and name.removeprefix("torch.") in DTYPES:
                    return name.removeprefix("torch.")
        return "bfloat16"

    def windows(self, layers: int) -> tuple[int, int, int | None]:
        """(layers with a sliding window, attention layers in all, the window)."""
        window = self.data.get("sliding_window", _DEFAULT_WINDOW.get(self.model_type()))
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 0):
            raise InputError(
                repr(window)[:60], "a whole number of tokens", path=self.path, column="sliding_window"
            )
        kinds = self._layer_types(layers, bool(window))
        attending = sum(kind not in ("linear_attention", "mamba", "conv") for kind in kinds)
        sliding = sum(kind == _SLIDES for kind in kinds) if window else 0
        if not attending:
            raise InputError("no attention layer", "one or more", path=self.path, column="layer_types")
        return sliding, attending, window if sliding else None

    def _layer_types(self, layers: int, has_window: bool) -> list[str]:
        kinds = self.data.get("layer_types")
        if kinds is not None:
            if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
                raise InputError(
                    type(kinds).__name__, "a list of names", path=self.path, column="layer_types"
                )
            if len(kinds) < layers:
                raise InputError(
                    f"{len(kinds)} entries",
                    f"one for each of {layers} layers",
                    path=self.path,
                    column="layer_types",
                )
            return kinds[:layers]
        model_type = self.model_type()
        if not has_window:
            return [_FULL] * layers
        if model_type in _SLIDING_PATTERN:
            every = self.data.get("sliding_window_pattern")
            every = every if isinstance(every, int) and every > 0 else _SLIDING_PATTERN[model_type]
            return [_SLIDES if (at + 1) % every else _FULL for at in range(layers)]
        if model_type in _WINDOW_WHERE_USED:
            first = self.data.get("max_window_layers", 28)
            used = bool(self.data.get("use_sliding_window")) and isinstance(first, int)
            return [_SLIDES if used and at >= first else _FULL for at in range(layers)]
        return [_SLIDES if model_type in _ALL_SLIDE else _FULL] * layers
