"""DeBERTa and DeBERTa-v2."""

from typing import Any

import transformers as hf

from tests.peers.cases.case import TEXT, Case, at_tokens, tokens

DEBERTA = {**TEXT, "intermediate_size": 24, "relative_attention": True, "type_vocab_size": 0}
BOTH = ["c2p", "p2c"]


def deberta(**changes: Any) -> Case:
    def make(length: int) -> hf.DebertaModel:
        return hf.DebertaModel(hf.DebertaConfig(**DEBERTA, max_position_embeddings=max(length, 512), **changes))

    return Case(make, tokens, 3, at_tokens)


def deberta_v2(**changes: Any) -> Case:
    def make(length: int) -> hf.DebertaV2Model:
        return hf.DebertaV2Model(hf.DebertaV2Config(**DEBERTA, max_position_embeddings=max(length, 512), **changes))

    return Case(make, tokens, 3, at_tokens, key_biases={"key_proj.bias": "key_proj.weight"})


CASES = {
    "deberta": deberta(pos_att_type=BOTH, max_relative_positions=5),
    "deberta_c2p": deberta(pos_att_type=["c2p"], max_relative_positions=-1),
    "deberta_v3": deberta_v2(
        pos_att_type=BOTH, position_buckets=6, max_relative_positions=8, share_att_key=True, norm_rel_ebd="layer_norm"
    ),
    "deberta_v2_convolution": deberta_v2(
        pos_att_type=BOTH, position_buckets=6, max_relative_positions=8, share_att_key=True, conv_kernel_size=3
    ),
    "deberta_v2_p2c": deberta_v2(pos_att_type=["p2c"], max_relative_positions=5, share_att_key=False),
}
