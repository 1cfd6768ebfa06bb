"""XLNet, one stream."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.peers.cases.case import BATCH, HEADS, VOCABULARY, WIDTH, Case, at_tokens, tokens, whole

XLNET = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": 2, "n_head": HEADS, "d_inner": 24}


def xlnet(segments: bool, padded: bool = True, **changes: Any) -> Case:
    unused = ("mask_emb",) if segments else ("mask_emb", "r_s_bias", "seg_embed")

    def inputs(length: int) -> dict[str, Tensor]:
        kinds = {"token_type_ids": torch.randint(0, 3, (BATCH, length))} if segments else {}
        text = tokens(length)
        return {**(text if padded else {"input_ids": text["input_ids"]}), **kinds}

    return Case(
        lambda _: hf.XLNetModel(hf.XLNetConfig(**XLNET, **changes)), inputs, 3, at_tokens if padded else whole,
        unused=unused, attentions=False, checkpoints=False,
    )  # fmt: skip


CASES = {
    "xlnet": xlnet(True),
    "xlnet_clamped": xlnet(False, clamp_len=4),
    "xlnet_uni": xlnet(True, padded=False, attn_type="uni"),
}
