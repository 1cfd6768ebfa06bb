"""ALiBi as the code of BLOOM and of Falcon has it: a number per key, the same for every query.

    BLOOM      softmax(q_i . k_j / sqrt(d) + m_h p_j)         p_j: how many kept keys come before key j
    Falcon     softmax((q_i . k_j + m_h p_j) / sqrt(d))       the bias shares the scale

(Scao et al. 2022; Almazrouei et al. 2023; both as Hugging Face's models compute them. The slopes m_h are ALiBi's.)
"""

import numpy as np

from tests.oracle.alibi import slopes
from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def attention(inputs, parameters, *, key_mask, shares_the_scale: bool, **keywords) -> Answer:
    """(output, lse, weights), causal, over the keys that key_mask [B, L] keeps."""
    assert not parameters
    place = (np.cumsum(key_mask, axis=-1) - 1) * key_mask

    def ingredients(query, key, pairs: Pairs) -> Ingredients:
        bias = slopes(query.shape[-3])[:, None, None] * place[:, None, None, :]
        return Ingredients(scaled=bias) if shares_the_scale else Ingredients(unscaled=bias)

    return attend(inputs, ingredients, is_causal=True, key_mask=key_mask, **keywords)
