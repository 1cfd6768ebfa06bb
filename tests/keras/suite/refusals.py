"""Bad input gets one sentence: the argument, what came, what is expected, the way out."""

import os

import keras
import numpy as np
import pytest
from keras import ops

import relattn.keras as rk
from relattn.errors import ShapeError, UnsupportedError
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
        (lambda: rk.RelativeEmbedding(0, 5), ValueError, "head_dim: got 0; expected an int of at least 1"),
        (
            lambda: rk.RelativeEmbedding(4, 2.5),
            ValueError,
            "max_length: got 2.5; expected an int of at least 1",
        ),
        (lambda: rk.RelativeEmbedding(4, 5, num_heads=0), ValueError, "num_heads: got 0; expected an int..."),
        (lambda: rk.RelativeEmbedding(4, 5, causal=1), TypeError, "causal: got 1; expected True or False"),
        (
            lambda: rk.RelativeEmbedding(4, 5, beyond="wrap"),
            ValueError,
            "beyond: got 'wrap'; expected one of 'error', 'clamp', 'zero'",
        ),
        (lambda: rk.KeyQueryEmbedding(4, 0), ValueError, "max_length: got 0; expected an int of at least 1"),
        (
            lambda: rk.DisentangledEmbedding(2, 4, c2p=False, p2c=False),
            ValueError,
            "c2p, p2c: got False for both; expected at least one of the terms",
        ),
        (
            lambda: rk.DisentangledEmbedding(2, 4, max_distance=6, num_buckets=10),
            ValueError,
            "num_buckets: got 10 with max_distance=6; expected an even number below 10, half of it for exact distances",
        ),
        (
            lambda: rk.RotaryEmbedding(4) + rk.AlibiBias(2) + rk.RotaryEmbedding(4),
            UnsupportedError,
            "sum of encodings: two operands rotate the queries and keys; no paper defines that, keep one of them",
        ),
        (
            lambda: rk.ShawEmbedding(4, (1, 2, 3)),
            ValueError,
            "max_distance: got (1, 2, 3); expected an int of at least 0, or the pair (left, right)",
        ),
        (
            lambda: rk.TransformerXLEmbedding(2, 4, embed_dim=5),
            ValueError,
            "embed_dim: got 5; expected an even width, a sine and a cosine for each frequency",
        ),
        (
            lambda: rk.TransformerXLEmbedding(2, 4, embed_dim=6, max_length=9),
            ValueError,
            "max_length: got 9 beside embed_dim=6, interleaved=False; a learned table has no sinusoids, leave those "
            "out or max_length",
        ),
        (lambda: rk.T5Bias(2, num_buckets=7), ValueError, "num_buckets: got 7; expected a multiple of four..."),
        (lambda: rk.AlibiBias(None), ValueError, "num_heads: got None; expected an int of at least 1"),
        (
            lambda: rk.AlibiBias(2, [0.5, 0.0]),
            ValueError,
            "slopes: got [0.5, 0.0]; expected 2 finite numbers above 0, one for each head; leave it out for those of "
            "the paper",
        ),
        (
            lambda: rk.AlibiBias(2, [0.5]),
            ValueError,
            "slopes: got [0.5]; expected 2 finite numbers above 0, one for each head; leave it out for those of the "
            "paper",
        ),
        (lambda: rk.AlibiBias(2, signed=1), TypeError, "signed: got 1; expected True or False"),
        (
            lambda: rk.Attention(4, 5, dropout=1.5),
            ValueError,
            "dropout: got 1.5; expected a probability between 0 and 1",
        ),
        (lambda: rk.Attention(4, 0), ValueError, "sequence_length: got 0; expected an int of at least 1"),
        (
            lambda: rk.RotaryEmbedding(4, rotary_dim=6),
            ValueError,
            "rotary_dim: got 6 with head_dim=4; expected an even number of features, at most 4",
        ),
        (
            lambda: rk.RotaryEmbedding(4, scaling={"rope_type": "dynamic", "factor": 2.0}),
            ValueError,
            "scaling: got {'rope_type': 'dynamic', 'factor': 2.0}; expected 'original_max_position_embeddings' in it "
            "for rope_type 'dynamic'; it is the config's max_position_embeddings",
        ),
        (lambda: rk.RotaryEmbedding(4, base=1), ValueError, "base: got 1; expected a finite number above 1"),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, encoding="rope"),
            TypeError,
            "encoding: got str; expected a layer of relattn.keras or None",
        ),
        (
            lambda: rk.RelativeMultiHeadAttention(2, 4, encoding=rk.T5Bias),
            TypeError,
            "encoding: got the class T5Bias and no instance, T5Bias(...); expected a layer of relattn.keras or None",
        ),
        (
            lambda: rk.T5Bias(2) + rk.T5Bias,
            TypeError,
            "sum of encodings: got the class T5Bias and no instance, T5Bias(...); expected a layer of relattn.keras",
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


class Refusing(rk.RelativeEncoding):
    """An encoding that leaves the check of its rows to the call."""

    def terms(self, queries, positions):
        return rk.ScoreTerms(bias=rk.OffsetTable(ops.zeros((1, 2)), 0))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: rk.RelativeEmbedding(SIZE, 9)(X),
            ShapeError,
            "queries: got shape [1, 5, 8]; expected [batch, heads, length, width]",
        ),
        (
            lambda: rk.RelativeEmbedding(6, 9)(QUERIES),
            ShapeError,
            "queries: got shape [1, 2, 5, 4]; expected [batch, heads, length, 6]",
        ),
        (
            lambda: rk.T5Bias(3)(QUERIES),
            ShapeError,
            "T5Bias queries: got shape [1, 2, 5, 4]; expected [batch, 3, length, width]",
        ),
        (
            lambda: rk.RotaryEmbedding(6)(QUERIES),
            ShapeError,
            "got shape [1, 2, 5, 4]; expected [batch, heads, length, 6]",
        ),
        (
            lambda: rk.RelativeEmbedding(SIZE, 4)(QUERIES),
            ValueError,
            "RelativeEmbedding max_length: the offsets -4..4 are visible and max_length=4 reaches -3..3; make it with "
            "a larger max_length, or with beyond='clamp' or 'zero'",
        ),
        (
            lambda: rk.RelativeEmbedding(SIZE, 6)(QUERIES, key_length=7),
            ValueError,
            "the offsets -4..6 are visible and max_length=6 reaches -5..5",
        ),
        (
            lambda: rk.RelativeEmbedding(SIZE, 9)(QUERIES, key_length=0),
            ValueError,
            "key_length: got 0; expected an int of at least 1",
        ),
        (
            lambda: rk.RelativeEmbedding(SIZE, 9)(QUERIES, query_position=1.5),
            TypeError,
            "query_position: got 1.5; expected the position of the first element, an int or a scalar integer tensor, "
            "or a tensor of the position of every element",
        ),
        (
            lambda: rk.RelativeEmbedding(SIZE, 9)(QUERIES, key_position=ops.zeros((6,), "int32")),
            ShapeError,
            "key_position: got shape [6] of int32; expected integers: the position of the first element, a scalar, or "
            "of every element, [5] or [1, 5]",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), query_position={"y": 0, "x": 0}),
            TypeError,
            "query_position: got a mapping of the axes 'y', 'x'; expected positions on the sequence alone, for "
            "relattn.keras has no other axes; relattn.nn and relative_attention of PyTorch have them",
        ),
        (
            lambda: rk.RelativeEmbedding(SIZE, 9)(QUERIES, key_position={"x": 0}),
            TypeError,
            "key_position: got a mapping of the axes 'x'; expected positions on the sequence alone...",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), query_position=np.zeros((3, 5), "int32")),
            ShapeError,
            "query_position: got shape [3, 5] of int32; expected integers...[5] or [1, 5]",
        ),
        (
            lambda: rk.RotaryEmbedding(SIZE)(QUERIES, position=np.zeros(5, "float32")),
            ShapeError,
            "position: got shape [5] of float32; expected integers...",
        ),
        (
            lambda: attend(rk.RelativeEmbedding(SIZE, 5), query_position=np.array([0, 1, 2, 3, 9])),
            ValueError,
            "RelativeEmbedding max_length: the offsets -9..4 are visible and max_length=5 reaches -4..4",
        ),
        (
            lambda: attend(rk.AlibiBias(HEADS), query_position=np.array([0, 1, 2, 3, 2**25])),
            ValueError,
            "query_position, key_position: offsets -33554432..4 are visible, more than the 16777216 that an encoding "
            "makes rows for; set a window, or number the positions with smaller gaps",
        ),
        (
            lambda: rk.KeyQueryEmbedding(SIZE, 5)(QUERIES),
            UnsupportedError,
            "got an encoding whose terms are not one tensor that queries alone tell...; give it to "
            "RelativeMultiHeadAttention as encoding=",
        ),
        (
            lambda: (rk.AlibiBias(HEADS) + rk.RelativeEmbedding(SIZE, 5))(QUERIES),
            UnsupportedError,
            "got an encoding whose terms are not one tensor that queries alone tell...",
        ),
        (
            lambda: attend(rk.KeyQueryEmbedding(SIZE, 4)),
            ValueError,
            "KeyQueryEmbedding max_length: the offsets -4..4 are visible and max_length=4 reaches -3..3; make it with "
            "a larger max_length",
        ),
        (
            lambda: attend(rk.RotaryEmbedding(SIZE) + rk.KeyQueryEmbedding(SIZE, 5)),
            UnsupportedError,
            "sum of encodings: a rotation and relative queries; the relative queries would meet rotated keys, which no "
            "paper defines",
        ),
        (
            lambda: attend(rk.RotaryEmbedding(SIZE) + rk.TransformerXLEmbedding(HEADS, SIZE)),
            UnsupportedError,
            "sum of encodings: both operands rewrite the query; no paper defines that, keep one of them",
        ),
        (
            lambda: attend(Refusing()),
            ValueError,
            "bias: the offsets -4..4 are visible and its rows cover 0..1; use beyond='clamp' or 'zero', or give more",
        ),
        (
            lambda: rk.RelativePositionalEmbedding(SIZE, 4)(QUERIES),
            ValueError,
            "query: got length 5; expected 1 to 4, the sequence_length; make the layer with a larger one",
        ),
        (
            lambda: rk.Attention(SIZE, 5)(np.ones((1, HEADS, 6, SIZE)), np.ones((1, HEADS, 6, 3)), QUERIES),
            ValueError,
            "key: got length 6; expected 1 to 5, the sequence_length; make the layer with a larger one",
        ),
        (
            lambda: rk.Attention(SIZE, 5)(QUERIES, QUERIES, QUERIES[:, :, :0]),
            ValueError,
            "query: got length 0; expected 1 to 5, the sequence_length",
        ),
        (
            lambda: rk.Attention(SIZE, 5)(QUERIES, QUERIES[:, :, 1:], QUERIES),
            ShapeError,
            "key, value, query: got shapes [1, 2, 5, 4], [1, 2, 4, 4] and [1, 2, 5, 4]; expected one batch, as many "
            "heads in all three, and a value per key",
        ),
        (
            lambda: rk.Attention(6, 5)(QUERIES, QUERIES, QUERIES),
            ShapeError,
            "query: got shape [1, 2, 5, 4]; expected [batch, heads, length, 6]",
        ),
        (
            lambda: rk.Attention(SIZE, 5)(QUERIES, QUERIES, QUERIES, key_mask=np.ones((1, 4), dtype=bool)),
            ShapeError,
            "key_mask: got shape [1, 4]; expected [batch, length], here [1, 5]",
        ),
        (
            lambda: attend(rk.RelativeEmbedding(SIZE, 9, causal=True)),
            ValueError,
            "RelativeEmbedding: keys lie up to 4 positions in the future and causal=True has no rows for "
            "them; attend with use_causal_mask=True, or make it with causal=False",
        ),
        (
            lambda: attend(rk.TransformerXLEmbedding(HEADS, SIZE, max_length=4), use_causal_mask=True),
            ValueError,
            "TransformerXLEmbedding max_length: the offsets -4..0 are visible and max_length=4 reaches -3..3; make it "
            "with a larger max_length, or without, for sinusoids",
        ),
        (
            lambda: attend(rk.AlibiBias(3)),
            ShapeError,
            "AlibiBias queries: got shape [1, 2, 5, 4]; expected [batch, 3, length, width]",
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
            lambda: rk.RelativeMultiHeadAttention(HEADS, SIZE, value_dim=3, encoding=rk.ShawEmbedding(SIZE, 2))(X, X),
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
    layer = rk.RelativeEmbedding(SIZE, 4)
    refuses(ValueError, "max_length=4 reaches", lambda: layer(QUERIES))
    assert layer(QUERIES[:, :, :4]).shape == (1, HEADS, 4, 4)
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
