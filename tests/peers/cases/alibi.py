"""BLOOM, Falcon and MPT."""

from typing import Any

import transformers as hf
from torch import nn

from tests.peers.cases.case import TEXT, VOCABULARY, Case, at_tokens, tokens


def bloom(heads: int) -> Case:
    settings = {"vocab_size": VOCABULARY, "hidden_size": 4 * heads, "n_layer": 2, "n_head": heads, "pad_token_id": 0}
    return Case(lambda _: hf.BloomForCausalLM(hf.BloomConfig(**settings)), tokens, 2, at_tokens, generates=True)


def falcon(alibi: bool, **settings: Any) -> Case:
    """With ALiBi the original's eager attention adds it twice, and its static cache fails: tests/hf/test_falcon.py."""
    sizes = {**TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

    def make(_: int) -> nn.Module:
        return hf.FalconForCausalLM(hf.FalconConfig(**sizes, alibi=alibi, **settings))

    return Case(make, tokens, 3, at_tokens, attentions=not alibi, generates=not alibi, dropout=alibi)


def mpt(heads: int) -> Case:
    settings = {"vocab_size": VOCABULARY, "d_model": 4 * heads, "n_layers": 2, "n_heads": heads,
                "pad_token_id": 0, "eos_token_id": 2}  # fmt: skip

    def make(length: int) -> nn.Module:
        return hf.MptForCausalLM(hf.MptConfig(**settings, max_seq_len=max(length, 32)))

    return Case(make, tokens, 4, at_tokens, generates=True)


CASES = {
    "bloom": bloom(4),
    "bloom_6_heads": bloom(6),
    "falcon": falcon(False),
    "falcon_alibi": falcon(True, multi_query=False, parallel_attn=False),
    "falcon_alibi_one_key_head": falcon(True),
    "falcon_alibi_new": falcon(True, new_decoder_architecture=True, num_kv_heads=2),
    "mpt": mpt(4),
    "mpt_6_heads": mpt(6),
}
