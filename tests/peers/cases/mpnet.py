"""MPNet."""

import transformers as hf
from torch import nn

from tests.peers.cases.case import TEXT, Case, at_tokens, tokens


def mpnet(buckets: int) -> Case:
    settings = {**TEXT, "intermediate_size": 24, "relative_attention_num_buckets": buckets}

    def make(length: int) -> nn.Module:
        config = hf.MPNetConfig(**settings, max_position_embeddings=length + 2)
        return hf.MPNetModel(config, add_pooling_layer=False)

    return Case(
        make, tokens, 3, at_tokens, key_biases={"attn.k.bias": "attn.k.weight"}, checkpoints=False
    )  # fmt: skip


CASES = {"mpnet": mpnet(32), "mpnet_more_buckets": mpnet(40)}
