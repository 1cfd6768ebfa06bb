"""LongT5."""

from typing import Any

import transformers as hf
from torch import nn

from tests.peers.cases.case import Case, pairs_of_texts, whole
from tests.peers.cases.t5 import T5


def longt5(**changes: Any) -> Case:
    def make(_: int) -> nn.Module:
        return hf.LongT5ForConditionalGeneration(hf.LongT5Config(**T5, **changes))

    return Case(make, pairs_of_texts, 6, whole, generates=True)


CASES = {
    "longt5": longt5(local_radius=2),
    "longt5_transient_global": longt5(
        encoder_attention_type="transient-global", local_radius=2, global_block_size=4, feed_forward_proj="gated-gelu"
    ),
}
