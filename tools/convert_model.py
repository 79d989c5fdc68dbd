"""Write one model directory as vLLM loads it. Run by tools/models.py in the environment it makes.

Usage: convert_model.py smollm2-135m-instruct DIRECTORY --source MODEL.gguf
       convert_model.py tiny-random DIRECTORY
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

# GGUF's names for the parts of a Llama layer, and those of the Hugging Face layout
# (gguf.tensor_mapping has the pairs for every architecture, but only in the other direction).
LAYER_PARTS = {
    "attn_k": "self_attn.k_proj",
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.up_proj",
}
TOP_PARTS = {"output_norm": "model.norm", "token_embd": "model.embed_tokens"}

CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL, as stored in tokenizer.ggml.token_type

TINY_TEXT = """
The quick brown fox jumps over the lazy dog while the server answers one question after another.
A model that knows nothing still has to be loaded, started, asked, drained and stopped like any
other, and that is what this one is for: every word it says is chosen by random numbers.
"""
TINY_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Array = Any  # numpy has no stubs where this file is checked


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write readable JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def undo_rope_order(weight: Array, heads: int) -> Array:
    """Return query or key weights in Hugging Face's row order.

    llama.cpp interleaves the two halves of each rotary head when it makes a GGUF
    (LlamaModel.permute in its convert_hf_to_gguf.py); this is the inverse.
    """
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def layout_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor, such as blk.0.attn_q.weight."""
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{LAYER_PARTS[part]}.{kind}"
    part, kind = name.split(".")
    return f"{TOP_PARTS[part]}.{kind}"


def llama_config(**values: object) -> dict[str, Any]:
    """Return a config.json for a Llama model in the form that every engine release reads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **values,
    }


def write_tokenizer(
    directory: Path, tokenizer: Tokenizer, template: str, context: int, names: dict[str, str]
) -> None:
    """Write the tokenizer's files; `names` are bos_token, eos_token and so on."""
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(
        directory / "tokenizer_config.json",
        {
            **names,
            "add_bos_token": False,
            "chat_template": template,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def convert_gguf(source: Path, directory: Path) -> None:
    """Write a Llama GGUF with a SmolLM tokenizer as bfloat16 safetensors, config and tokenizer."""
    reader = gguf.GGUFReader(source)

    def field(key: str) -> Any:
        return reader.get_field(key).contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    special = {
        kind: field(f"tokenizer.ggml.{key}_token_id")
        for kind, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    context = field("llama.context_length")
    ids = {f"{kind}_token_id": special[kind] for kind in ("bos", "eos", "pad")}

    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            weight = undo_rope_order(weight, heads)
        elif ".attn_k." in tensor.name:
            weight = undo_rope_order(weight, kv_heads)
        tensors[layout_name(tensor.name)] = np.ascontiguousarray(weight.astype(ml_dtypes.bfloat16))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    write_json(
        directory / "config.json",
        llama_config(
            **ids,
            head_dim=field("llama.rope.dimension_count"),
            hidden_size=field("llama.embedding_length"),
            intermediate_size=field("llama.feed_forward_length"),
            max_position_embeddings=context,
            num_attention_heads=heads,
            num_hidden_layers=field("llama.block_count"),
            num_key_value_heads=kv_heads,
            # GGUF holds a float32; its shortest decimal form is what was meant.
            rms_norm_eps=float(str(np.float32(field("llama.attention.layer_norm_rms_epsilon")))),
            rope_theta=field("llama.rope.freq_base"),
            tie_word_embeddings="output.weight" not in {t.name for t in reader.tensors},
            vocab_size=field("llama.vocab_size"),
        ),
    )
    write_json(directory / "generation_config.json", ids)

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # llama.cpp's pre-tokenizer "smollm": every digit alone, then GPT-2's rule.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds)
            if kind == CONTROL_TOKEN
        ]
    )
    names = {f"{kind}_token": tokens[index] for kind, index in special.items()}
    write_tokenizer(directory, tokenizer, field("tokenizer.chat_template"), context, names)


def make_tiny(directory: Path) -> None:
    """Write a two-layer Llama of random weights that starts in seconds and says printable text."""
    vocabulary, hidden, layers, heads, kv_heads, head, inner, context = (
        512, 256, 2, 4, 2, 64, 512, 4096,
    )  # fmt: skip
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    tokenizer.train_from_iterator(
        [TINY_TEXT],
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    write_tokenizer(directory, tokenizer, TINY_TEMPLATE, context, names)

    generator = np.random.default_rng(135)

    def random(*shape: int) -> Array:
        return (generator.standard_normal(shape) * shape[-1] ** -0.5).astype(ml_dtypes.bfloat16)

    # Rows of zeros keep unprintable and closing tokens from ever being the likeliest: a greedy
    # answer is text and as long as was asked for.
    out = random(vocabulary, hidden)
    for index in range(vocabulary):
        text = tokenizer.decode([index])
        if not (text and text.isascii() and text.isprintable()):
            out[index] = 0
    ones = np.ones(hidden, ml_dtypes.bfloat16)
    tensors = {"model.embed_tokens.weight": random(vocabulary, hidden), "lm_head.weight": out}
    for layer in range(layers):
        shapes = {
            "self_attn.q_proj": (heads * head, hidden),
            "self_attn.k_proj": (kv_heads * head, hidden),
            "self_attn.v_proj": (kv_heads * head, hidden),
            "self_attn.o_proj": (hidden, heads * head),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for part, shape in shapes.items():
            tensors[f"model.layers.{layer}.{part}.weight"] = random(*shape)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{part}.weight"] = ones
    tensors["model.norm.weight"] = ones
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    write_json(
        directory / "config.json",
        llama_config(
            **ids,
            head_dim=head,
            hidden_size=hidden,
            intermediate_size=inner,
            max_position_embeddings=context,
            num_attention_heads=heads,
            num_hidden_layers=layers,
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            tie_word_embeddings=False,
            vocab_size=vocabulary,
        ),
    )
    write_json(directory / "generation_config.json", ids)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["smollm2-135m-instruct", "tiny-random"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--source", type=Path)
    arguments = parser.parse_args()
    if arguments.model == "tiny-random":
        make_tiny(arguments.directory)
    elif arguments.source is None:
        parser.error(f"{arguments.model} needs --source MODEL.gguf")
    else:
        convert_gguf(arguments.source, arguments.directory)


if __name__ == "__main__":
    main()
