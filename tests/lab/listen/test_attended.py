"""What a model looks at when it writes a token: the largest weights, counted back from the token."""

import base64

import numpy as np
import pytest

from relattn_lab.listen import attended_by
from relattn_lab.listen.attended import RANKS, WHOLE
from relattn_lab.model import LabModel
from tests.lab import small


def weights_of_one_layer(model: LabModel, tokens: np.ndarray) -> np.ndarray:
    """softmax((q_i . k_j + q_i . E[j - i]) / sqrt(D)) [heads, n, n] in float64.

    Of "begin" and all tokens but the last.
    """
    state = {name: weight.double().numpy() for name, weight in model.state_dict().items()}
    heads, width, length = model.config.heads, model.config.width, model.config.length
    x = state["embedding.weight"][np.append(0, tokens[:-1])] * width**0.5
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * state["blocks.0.attention_norm.weight"] + state["blocks.0.attention_norm.bias"]
    q, k = (
        (x @ state[f"blocks.0.attention.{name}_proj.weight"].T + state[f"blocks.0.attention.{name}_proj.bias"])
        .reshape(len(x), heads, -1)
        .swapaxes(0, 1)
        for name in "qk"
    )
    rows = state["blocks.0.attention.encoding.relative_keys"][0]
    i, j = np.indices((len(x), len(x)))
    visible = (j <= i) & (i - j < length)
    relative = np.einsum("hid,ijd->hij", q, rows[np.clip(j - i + length - 1, 0, length - 1)])
    scores = np.where(visible, (q @ k.swapaxes(1, 2) + relative) / (width // heads) ** 0.5, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def test_the_largest_weights_counted_back_from_the_token():
    """Longer than the window: what lies further back is out of sight."""
    model = small.model("relative", depth=1)
    tokens = small.tokens(1, 40)[0].numpy()
    found, wanted = attended_by(model, tokens), weights_of_one_layer(model, tokens)
    assert found.back.shape == found.shares.shape == (1, 2, 40, RANKS)
    for head in range(2):
        for token in range(40):
            of_tokens = wanted[head, token].copy()
            of_tokens[0] = 0.0  # that of "begin"
            largest = np.sort(of_tokens)[::-1][:RANKS]
            assert np.abs(found.shares[0, head, token] - WHOLE * largest).max() < 0.51
            for back, share in zip(found.back[0, head, token], found.shares[0, head, token], strict=True):
                if share > 0:
                    assert back >= 1
                    assert abs(WHOLE * of_tokens[token - back + 1] - share) < 0.51


@pytest.mark.parametrize("encoding", ["relative+pitch+time", "rope", "sinusoid+voice", "none"])
def test_every_layer_sees_what_it_saw_when_the_model_composed(encoding: str):
    """The windows roll in all layers: after two windows a change of the first tokens changes nothing."""
    model = small.model(encoding, depth=1)
    tokens = small.tokens(1, 48)[0].numpy()
    other = tokens.copy()
    other[:8] = np.roll(tokens[:8], 1)
    found, changed = attended_by(model, tokens), attended_by(model, other)
    late = slice(8 + model.config.length, None)
    assert np.array_equal(found.shares[:, :, late], changed.shares[:, :, late])
    assert not np.array_equal(found.shares[:, :, :24], changed.shares[:, :, :24])


def test_as_json_the_bytes_come_back():
    model = small.model("relative")
    found = attended_by(model, small.tokens(1, 12)[0].numpy())
    told = found.as_json()
    assert [told[name] for name in ("layers", "heads", "tokens", "ranks")] == list(found.back.shape)
    assert np.array_equal(np.frombuffer(base64.b64decode(told["back"]), "<u2"), found.back.ravel())
    assert np.array_equal(np.frombuffer(base64.b64decode(told["shares"]), np.uint8), found.shares.ravel())
