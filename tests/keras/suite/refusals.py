"""Bad input gets one sentence: the argument, what came, what is expected, the way out."""

import os

import keras
import numpy as np
import pytest
from keras import ops

import relattn.keras as rk
from relattn.errors import ShapeError
from tests.bad_input.refusal import refused

HEADS, SIZE, WIDTH = 2, 4, 8
QUERIES = np.ones((1, HEADS, 5, SIZE), dtype="float32")
X = np.ones((1, 5, WIDTH), dtype="float32")


def refuses(error, said, call):
    """`call` refuses; Keras wraps what a layer's call raises in its own report, of which `said` is the sentence."""
    with pytest.raises(error) as caught:
        call()
    pattern = said.split("...")
    text = str(caught.value)
    place = 0
    for part in pattern:
        place = text.find(part, place)
        assert place >= 0, f"it says   {text}\nand not   {said}"


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: rk.RelativePositionalEmbedding(0, 5), ValueError, "head_size: got 0; expected an int of at least 1"),
        (
            lambda: rk.RelativePositionalEmbedding(4, 2.5),
            ValueError,
            "sequence_length: got 2.5; expected an int of at least 1",
        ),
        (lambda: rk.RelativePositionalEmbedding(4, 5, 0), ValueError, "num_heads: got 0; expected an int..."),
        (
            lambda: rk.RelativePositionalEmbedding(4, 5, causal=1),
            TypeError,
            "causal: got 1; expected True or False",
        ),
        (
            lambda: rk.ShawRelativeEmbedding(4, (1, 2, 3)),
            ValueError,
            "max_distance: got (1, 2, 3); expected an int of at least 0, or the pair (left, right)",
        ),
        (
            lambda: rk.TransformerXLRelativeEmbedding(2, 4, embed_dim=5),
            ValueError,
            "embed_dim: got 5; expected an even width, a sine and a cosine for each frequency",
        ),
        (
            lambda: rk.TransformerXLRelativeEmbedding(2, 4, embed_dim=6, sequence_length=9),
            ValueError,
            "sequence_length: got 9 beside embed_dim=6, interleaved=False; a learned table has no sinusoids, leave "
            "those out or sequence_length",
        ),
        (lambda: rk.T5RelativeBias(2, num_buckets=7), ValueError, "num_buckets: got 7; expected a multiple of four..."),
        (lambda: rk.AlibiBias(None), ValueError, "num_heads: got None; expected an int of at least 1"),
        (
            lambda: rk.RotaryEmbedding(4, rotary_dim=6),
            ValueError,
            "rotary_dim: got 6 with head_size=4; expected an even number of features, at most 4",
        ),
        (lambda: rk.RotaryEmbedding(4, base=1), ValueError, "base: got 1; expected a finite number above 1"),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, encoding="rope"),
            TypeError,
            "encoding: got str; expected a layer of relattn.keras or None",
        ),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, query_block=0),
            ValueError,
            "query_block: got 0; expected an int of at least 1",
        ),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, scale=float("nan")),
            ValueError,
            "scale: got nan; expected a finite number, or None for 1/sqrt(width)",
        ),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, encoding=rk.AlibiBias(2), flash_attention=True),
            ValueError,
            "flash_attention: got True beside an encoding; expected None: fused kernels have no relative terms and no "
            "blocks of queries",
        ),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, query_block=8, flash_attention=True),
            ValueError,
            "flash_attention: got True beside query_block; expected None...",
        ),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, encoding=rk.AlibiBias(2), attention_axes=(1, 2)),
            ValueError,
            "attention_axes: got (1, 2) beside an encoding; expected None: positions are those of axis 1",
        ),
    ],
)
def test_arguments_of_layers(make, error, said):
    with refused(error, said):
        make()


def attend(encoding, query=X, value=X, **call):
    return rk.RelativeMultiHeadAttention(HEADS, SIZE, encoding=encoding)(query, value, **call)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: rk.RelativePositionalEmbedding(SIZE, 9)(X),
            ShapeError,
            "queries: got shape [1, 5, 8]; expected [batch, heads, length, head_size]",
        ),
        (
            lambda: rk.RelativePositionalEmbedding(6, 9)(QUERIES),
            ShapeError,
            "queries: got shape [1, 2, 5, 4]; expected [batch, heads, length, 6]",
        ),
        (
            lambda: rk.T5RelativeBias(3)(QUERIES),
            ShapeError,
            "T5RelativeBias queries: got shape [1, 2, 5, 4]; expected [batch, 3, length, head_size]",
        ),
        (
            lambda: rk.RotaryEmbedding(6)(QUERIES),
            ShapeError,
            "got shape [1, 2, 5, 4]; expected [batch, heads, length, 6]",
        ),
        (
            lambda: rk.RelativePositionalEmbedding(SIZE, 4)(QUERIES),
            ValueError,
            "RelativePositionalEmbedding sequence_length: the offsets -4..4 are visible and sequence_length=4 reaches "
            "-3..3; make it with a larger sequence_length",
        ),
        (
            lambda: rk.RelativePositionalEmbedding(SIZE, 6)(QUERIES, key_length=7),
            ValueError,
            "the offsets -4..6 are visible and sequence_length=6 reaches -5..5",
        ),
        (
            lambda: rk.RelativePositionalEmbedding(SIZE, 9)(QUERIES, key_length=0),
            ValueError,
            "key_length: got 0; expected an int of at least 1",
        ),
        (
            lambda: rk.RelativePositionalEmbedding(SIZE, 9)(QUERIES, query_position=1.5),
            TypeError,
            "query_position: got 1.5; expected the position of the first element, an int or a scalar integer tensor",
        ),
        (
            lambda: rk.RelativePositionalEmbedding(SIZE, 9)(QUERIES, key_position=ops.zeros((5,), "int32")),
            ShapeError,
            "key_position: got shape [5] of int32; expected the position of the first element, an int or a scalar",
        ),
        (
            lambda: attend(rk.RelativePositionalEmbedding(SIZE, 9, causal=True)),
            ValueError,
            "RelativePositionalEmbedding: keys lie up to 4 positions in the future and causal=True has no rows for "
            "them; attend with use_causal_mask=True, or make it with causal=False",
        ),
        (
            lambda: attend(rk.TransformerXLRelativeEmbedding(HEADS, SIZE, sequence_length=4), use_causal_mask=True),
            ValueError,
            "TransformerXLRelativeEmbedding sequence_length: the offsets -4..0 are visible and sequence_length=4 "
            "reaches -3..3; make it with a larger sequence_length, or without, for sinusoids",
        ),
        (
            lambda: attend(rk.AlibiBias(3)),
            ShapeError,
            "AlibiBias queries: got shape [1, 2, 5, 4]; expected [batch, 3, length, head_size]",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), query=QUERIES, value=QUERIES),
            ShapeError,
            "query: got shape [1, 2, 5, 4]; expected [batch, length, features]",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), attention_mask=np.ones(5, dtype=bool)),
            ShapeError,
            "attention_mask: got shape [5]; expected [Lq, Lk], [batch, Lq, Lk] or [batch, heads, Lq, Lk], here 5 "
            "queries and 5 keys",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), attention_mask=np.ones((7, 5), dtype=bool)),
            ShapeError,
            "attention_mask: got shape [7, 5]; expected [Lq, Lk]",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), attention_mask=np.ones((1, 3, 5, 5), dtype=bool)),
            ShapeError,
            "attention_mask: got shape [1, 3, 5, 5]; expected [Lq, Lk]",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), value_mask=np.ones((1, 4), dtype=bool)),
            ShapeError,
            "value_mask: got shape [1, 4]; expected [batch, length], here [1, 5]",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), key=X, key_mask=np.ones((1, 1), dtype=bool)),
            ShapeError,
            "key_mask: got shape [1, 1]; expected [batch, length], here [1, 5]",
        ),
        (
            lambda: attend(None, query=QUERIES, value=QUERIES, query_position=1),
            ShapeError,
            "query: got shape [1, 2, 5, 4]; expected [batch, length, features]",
        ),
        (
            lambda: rk.RelativeMultiHeadAttention(HEADS, SIZE, value_dim=3, encoding=rk.ShawRelativeEmbedding(SIZE, 2))(
                X, X
            ),
            ShapeError,
            "value_dim: got 3 beside relative values of width 4; expected the same, or an encoding made with "
            "values=False",
        ),
    ],
)
def test_calls(call, error, said):
    refuses(error, said, call)


def test_an_encoding_without_terms_says_so():
    class Empty(rk.RelativeEncoding):
        pass

    refuses(NotImplementedError, "Empty.terms: an encoding writes its own", lambda: Empty()(QUERIES))


def test_a_refused_call_leaves_keras_as_it_was():
    layer = rk.RelativePositionalEmbedding(SIZE, 4)
    refuses(ValueError, "sequence_length=4 reaches", lambda: layer(QUERIES))
    assert layer(QUERIES[:, :, :4]).shape == (1, HEADS, 4, 4)
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
