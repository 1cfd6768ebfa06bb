"""BLOOM and MPT."""

import transformers as hf
from torch import nn

from tests.peers.cases.case import VOCABULARY, Case, at_tokens, tokens

def bloom(heads: int) -> Case:
    settings = {"vocab_size": VOCABULARY, "hidden_size": 4 * heads, "n_layer": 2, "n_head": heads, "pad_token_id": 0}
    return Case(lambda _: hf.BloomForCausalLM(hf.BloomConfig(**settings)), tokens, 2, at_tokens, generates=True)


def mpt(heads: int) -> Case:
    settings = {"vocab_size": VOCABULARY, "d_model": 4 * heads, "n_layers": 2, "n_heads": heads,
                "pad_token_id": 0, "eos_token_id": 2}  # fmt: skip

    def make(length: int) -> nn.Module:
        return hf.MptForCausalLM(hf.MptConfig(**settings, max_seq_len=max(length, 32)))

    return Case(make, tokens, 4, at_tokens, generates=True)


CASES = {"bloom": bloom(4), "bloom_6_heads": bloom(6), "mpt": mpt(4), "mpt_6_heads": mpt(6)}
