"""A seeded random Qwen2 of 4 layers with a byte-level tokenizer, made on the spot: nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path


def make(folder: str, max_tokens: int = 4096) -> str:
    """Makes the model in ``folder`` unless it's there; the folder."""
    if (Path(folder) / "config.json").exists():
        return folder
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    vocabulary["<|end|>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>").save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        max_position_embeddings=max_tokens, tie_word_embeddings=False, initializer_range=0.08, eos_token_id=256, bos_token_id=None, pad_token_id=256,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(make(sys.argv[1]))
