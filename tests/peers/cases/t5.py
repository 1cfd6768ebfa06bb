"""T5, mT5, FLAN-T5, UMT5."""

from typing import Any

import transformers as hf

from tests.peers.cases.case import HEADS, VOCABULARY, WIDTH, Case, pairs_of_texts, whole

T5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": HEADS}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "decoder_start_token_id": 0}


def t5(kind: str, **changes: Any) -> Case:
    config, model = (getattr(hf, f"{kind}{part}") for part in ("Config", "ForConditionalGeneration"))
    return Case(lambda _: model(config(**T5, **changes)), pairs_of_texts, 6, whole, generates=True)


CASES = {
    "t5": t5("T5"),
    "mt5": t5("MT5"),
    "flan_t5": t5("T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "umt5": t5("UMT5"),
}
