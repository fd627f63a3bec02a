"""A tiny Llama or Mistral with random weights, whose tokens depend on attention; its tokens without vLLM.

    python -m tests.serving.tiny_model make FOLDER [settings of the model, as JSON]
    python -m tests.serving.tiny_model greedy FOLDER < [[prompt token ids], new tokens], ... > tokens

Dummy weights would not do: all tokens come out the same, whatever attention gives. Here queries and keys are
large enough for peaked scores. The oracle is transformers' own model, which attends densely.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 512
MAX_POSITIONS = 4096
_SCALES = {"q_proj": 0.18, "k_proj": 0.18, "v_proj": 0.12, "o_proj": 0.12, "embed": 1.0}
_OTHER_SCALE = 0.06


SETTINGS = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_POSITIONS,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(folder: Path, changes: dict[str, Any]) -> None:
    """Write the model of `SETTINGS`, with changes; one with a `sliding_window` is a Mistral."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    settings = {**SETTINGS, **changes}
    model: Any = (
        MistralForCausalLM(MistralConfig(**settings))
        if "sliding_window" in settings
        else LlamaForCausalLM(LlamaConfig(**settings))
    )
    model.to(torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 2:
                scale = next((each for part, each in _SCALES.items() if part in name), _OTHER_SCALE)
                weights.normal_(0, scale)
    model.save_pretrained(folder)


def greedy(folder: Path, requests: list[tuple[list[int], int]]) -> list[list[int]]:
    """The tokens that each prompt is continued with."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    tokens = []
    with torch.inference_mode():
        for prompt, count in requests:
            ids, past = torch.tensor([prompt]), None
            out: list[int] = []
            for _ in range(count):
                result = model(input_ids=ids, past_key_values=past, use_cache=True)
                past = result.past_key_values
                ids = result.logits[:, -1:].argmax(-1)
                out.append(int(ids))
            tokens.append(out)
    return tokens


if __name__ == "__main__":
    command, where = sys.argv[1], Path(sys.argv[2])
    if command == "make":
        make(where, json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
    else:
        json.dump(greedy(where, json.load(sys.stdin)), sys.stdout)
