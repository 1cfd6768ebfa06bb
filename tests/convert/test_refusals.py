"""Checkpoints that are foreign, broken, or hold what the other side cannot: one sentence that says what came."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import RelativeEmbedding, RelativeEncoding, ShawEmbedding, T5Bias, TransformerXLEmbedding
from relattn.convert import FORMATS, from_relattn, layers, to_relattn
from relattn.nn import RelativeMultiheadAttention
from tests.bad_input.refusal import refused
from tests.convert.cases import CASES, DIM, HEADS, WIDTH

pytest_plugins = ["tests.contract.fresh"]

FORMAT_NAMES = ", ".join(FORMATS)
EVERY_FORMAT = ", ".join(map(repr, FORMATS))


def test_another_format() -> None:
    for function, argument in ((to_relattn, "source"), (from_relattn, "target"), (layers, "source")):
        with refused(ValueError, f"{argument}: got 'bert'; expected one of {EVERY_FORMAT}"):
            function({}, "bert")


@pytest.mark.parametrize("checkpoint", [[], {"model": {}}, {1: torch.ones(1)}])
def test_no_tensors_by_name(checkpoint: object) -> None:
    kind = type(checkpoint).__name__
    for function in (to_relattn, from_relattn, layers):
        with refused(
            TypeError,
            f"checkpoint: got {kind}; expected tensors by name, such as a state_dict, and nothing else in it",
        ):
            function(checkpoint, "transfo_xl")


def test_a_foreign_checkpoint() -> None:
    gpt = {f"h.{i}.attn.c_attn.weight": torch.ones(2, 2) for i in range(4)}
    with refused(
        ValueError,
        "checkpoint: no attention layer of transfo_xl in it; looked for names ending in qkv_net.weight or r_net."
        "weight; got 4 names such as h.0.attn.c_attn.weight, h.1.attn.c_attn.weight, h.2.attn.c_attn.weight; the "
        f"formats are {FORMAT_NAMES}",
    ):
        to_relattn(gpt, "transfo_xl")


def test_a_checkpoint_of_another_format() -> None:
    with refused(ValueError, "...got 26 names such as ...; it may be bert_relative_key or bert_relative_key_query"):
        to_relattn(CASES["bert_relative_key"].checkpoint() | {f"{i}": torch.ones(1) for i in range(6)}, "transfo_xl")


def test_an_empty_checkpoint() -> None:
    with refused(ValueError, "checkpoint: no attention layer of returnn_rel_pos in it; looked for names ending in "
                 "linear_pos.weight or learned_pos_emb.pos_emb; got no names; the formats are ..."):  # fmt: skip
        to_relattn({}, "returnn_rel_pos")


def test_no_relattn_layer() -> None:
    with refused(ValueError, "checkpoint: no attention layer of relattn in it; looked for names ending in "
                 "q_proj.weight or encoding.*; got 1 names such as k_proj.weight; the formats are ..."):  # fmt: skip
        from_relattn({"k_proj.weight": torch.ones(2, 2)}, "transfo_xl")


def test_layers_of_relattn_without_an_encoding() -> None:
    with refused(ValueError, "checkpoint: got relattn's attention layers (q_proj.weight; 1 in all) without parameters "
                 "of an encoding (encoding.*); expected some, for transfo_xl holds them"):  # fmt: skip
        from_relattn({"q_proj.weight": torch.ones(2, 2)}, "transfo_xl")


def without(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda p: {name: one for name, one in p.items() if name not in names}


def other(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Callable[[dict], dict[str, Tensor]]:
    return lambda p: p | {name: torch.ones(shape, dtype=dtype)}


SCOPE = "dot_product_self_attention_relative_v2"
UNMASKED = "dot_product_unmasked_self_attention_relative_v2/key_relative_embeddings"
BROKEN = [
    ("transfo_xl", without("qkv_net.weight"), "has no qkv_net.weight, which transfo_xl needs"),
    ("transfo_xl", without("r_net.weight"), "has no r_net.weight, which transfo_xl needs"),
    ("transfo_xl", without("r_w_bias"), "has no r_w_bias, which transfo_xl needs"),
    (
        "transfo_xl",
        other("qkv_net.bias", 36),
        "has also qkv_net.bias, which transfo_xl has no part for",
    ),
    (
        "transfo_xl",
        other("r_w_bias", 12),
        "has r_w_bias of shape [12] and torch.float32; expected floats with 2 axes, none of them empty",
    ),
    (
        "transfo_xl",
        other("qkv_net.weight", 36, 12, dtype=torch.int8),
        "has qkv_net.weight of shape [36, 12] and torch.int8; expected floats with 2 axes, none of them empty",
    ),
    (
        "transfo_xl",
        other("qkv_net.weight", 35, 12),
        "has qkv_net.weight of shape [35, 12]; expected [3 * heads * width, d_model]",
    ),
    ("transfo_xl", other("r_net.weight", 12, 11), "projects sinusoids of width 11; expected an even width"),
    (
        "transfo_xl",
        other("r_net.weight", 10, 12),
        "makes encoding.linear_pos.weight [10, 12], and RelativeMultiheadAttention(12, 3, head_dim=4) has [12, 12]",
    ),
    (
        "transfo_xl",
        other("qkv_net.weight", 33, 12),
        "projects to 11 features of queries and 11 of keys; expected heads of width 4",
    ),
    (
        "bert_relative_key",
        other("self.distance_embedding.weight", 16, 4),
        "has self.distance_embedding.weight of shape [16, 4]; expected an odd number of rows, as many on either side",
    ),
    ("bert_relative_key", without("self.key.bias"), "has no self.key.bias, which bert_relative_key needs"),
    (
        "t2t_masked",
        other(f"{SCOPE}/value_relative_embeddings", 4, 4),
        f"has also {SCOPE}/value_relative_embeddings, which tensor2tensor_relative_v2 has no part for",
    ),
    (
        "t2t_unmasked",
        other(UNMASKED, 6, 4),
        f"has {UNMASKED} of shape [6, 4]; expected an odd number of rows, as many on either side",
    ),
    (
        "t2t_shaw",
        other("v/kernel", 12, 24),
        "makes v_proj.weight [24, 12], and RelativeMultiheadAttention(12, 3, head_dim=4) has [12, 12]",
    ),
    (
        "returnn_key_shift",
        other("QKV", 12, 40),
        "has QKV of shape [12, 40] beside an encoding_matrix of width 4; expected [in, a multiple of 12]: queries, "
        "keys and values of one width (n_out=total_key_dim)",
    ),
    (
        "returnn_key_shift",
        other("QKV", 10, 36),
        "makes out_proj.weight [12, 12], and RelativeMultiheadAttention(10, 3, head_dim=4) has [10, 12]",
    ),
    (
        "returnn_key_shift",
        without("encoding_matrix"),
        "does not say which encoding_matrix is its key_shift: there are 2 QKV and 1 encoding_matrix; give the layers "
        "one by one, each with its own",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "spoil", "said"), BROKEN)
def test_a_broken_layer(name: str, spoil: Callable, said: str, rng: np.random.Generator) -> None:
    """The first layer is, the second is not; the layer is named."""
    case = CASES[name]
    checkpoint, layer = case.checkpoint(), case.layers[0]
    names = case.names(layer)
    spoilt = spoil({local: checkpoint.pop(one) for local, one in names.items()})
    checkpoint = {names.get(local, layer + local): tensor for local, tensor in spoilt.items()} | checkpoint
    for function in (to_relattn, layers):
        with refused(ValueError, f"checkpoint: layer '{layer[:-1]}' {said}"):
            function(checkpoint, case.source)


def rel_pos(**changes: tuple[int, ...] | None) -> dict[str, Tensor]:
    """RETURNN's Transformer-XL layer but for changes, in whose names a dot is __."""
    shapes = {"qkv__weight": (DIM, 3 * DIM), "linear_pos__weight": (DIM, DIM), "pos_bias_u": (HEADS, WIDTH)}
    shapes |= {"pos_bias_v": (HEADS, WIDTH), **changes}
    return {name.replace("__", "."): torch.ones(shape) for name, shape in shapes.items() if shape is not None}


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        (
            rel_pos(learned_pos_emb__pos_emb=(9, DIM)),
            "has learned_pos_emb.pos_emb, linear_pos.weight, pos_bias_u, pos_bias_v together, which no encoding of "
            "relattn holds; expected linear_pos, pos_bias_u and pos_bias_v (Transformer-XL), or learned_pos_emb alone "
            "(Shaw)",
        ),
        (
            rel_pos(linear_pos__weight=(DIM, WIDTH)),
            "has linear_pos.weight of shape [12, 4], one projection for all heads; ours has one for each "
            "(separate_pos_emb_per_head=True): [in, 12]",
        ),
        (
            rel_pos(linear_pos__weight=None, pos_bias_u=None, pos_bias_v=None, learned_pos_emb__pos_emb=(9, DIM)),
            "has learned_pos_emb.pos_emb of shape [9, 12], rows as wide as all heads together "
            "(separate_pos_emb_per_head=True), which does not tell the number of heads",
        ),
        (
            rel_pos(qkv__bias=(35,)),
            "has qkv.bias for 35 features with heads of width 4; expected a multiple of 12: queries, keys and values "
            "of one width",
        ),
        (
            rel_pos(qkv__bias=(36,), proj__weight=(DIM, DIM)),
            "makes out_proj.bias nothing, and RelativeMultiheadAttention(12, 3, head_dim=4) has [12]",
        ),
    ],
)
def test_what_of_returnn_relattn_does_not_hold(checkpoint: dict[str, Tensor], said: str) -> None:
    with refused(ValueError, f"checkpoint: layer '' {said}"):
        to_relattn(checkpoint, "returnn_rel_pos")


def test_one_head_with_learned_rows_is_not_written_for_returnn() -> None:
    """Its reader could not tell it from several heads with rows of their own."""
    layer = RelativeMultiheadAttention(8, 1, RelativeEmbedding(8, 4, beyond="clamp"))
    with refused(ValueError, "checkpoint: layer '' has one head with learned rows, and learned_pos_emb then looks ..."):
        from_relattn(layer.state_dict(), "returnn_rel_pos")


def x_transformers(layer: str = "layers.0.1.", **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    made = {f"to_{one}": (DIM, DIM) for one in ("q", "k", "v", "out")} | shapes
    table = {"rel_pos.relative_attention_bias.weight": torch.ones(made.pop("bias", (32, HEADS)))}
    return table | {f"{layer}{name}.weight": torch.ones(shape) for name, shape in made.items()}


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        (
            x_transformers() | x_transformers("layers.1.1."),
            "is followed by another attention layer; with cross_attend every second one has no bias, and the names do "
            "not tell them apart; leave the cross-attention out of the checkpoint",
        ),
        (
            x_transformers(bias=(32, 5)),
            "has to_q.weight [12, 12], to_k.weight [12, 12] and to_out.weight [12, 12] beside a bias for 5 heads; "
            "expected one width of queries, keys and values in every head",
        ),
        (
            x_transformers(bias=(30, HEADS)),
            "has a bias of 30 buckets and 3 heads beside 12 features of queries; expected a multiple of four buckets, "
            "and a multiple of the heads",
        ),
        (x_transformers(to_v_gate=(4, 4)), "has also to_v_gate.weight, which x_transformers_t5 has no part for"),
        (
            {name: tensor for name, tensor in x_transformers().items() if "to_out" not in name},
            "has no to_out.weight beside a bias for 3 heads; only one head can do without",
        ),
    ],
)
def test_what_of_x_transformers_relattn_does_not_hold(checkpoint: dict[str, Tensor], said: str) -> None:
    with refused(ValueError, f"checkpoint: layer 'layers.0.1' {said}"):
        to_relattn(checkpoint, "x_transformers_t5")


def ours(encoding: RelativeEncoding, layer: str = "", *, bias: bool = False) -> dict[str, Tensor]:
    module = RelativeMultiheadAttention(DIM, HEADS, encoding, bias=bias)
    return {layer + name: tensor for name, tensor in module.state_dict().items()}


PER_HEAD = ShawEmbedding(WIDTH, 2, num_heads=HEADS, values=False)


@pytest.mark.parametrize(
    ("target", "checkpoint", "said"),
    [
        (
            "transfo_xl",
            ours(T5Bias(HEADS)),
            "has encoding.bias; transfo_xl holds encoding.linear_pos.weight, encoding.pos_bias_u, encoding.pos_bias_v",
        ),
        (
            "returnn_rel_pos",
            ours(T5Bias(HEADS)),
            "has encoding.bias; returnn_rel_pos holds encoding.linear_pos.weight, encoding.pos_bias_u, "
            "encoding.pos_bias_v or encoding.relative_keys",
        ),
        (
            "transfo_xl",
            ours(TransformerXLEmbedding(HEADS, WIDTH), bias=True),
            "has q_proj.bias, and Transformer-XL has no biases; train it with bias=False",
        ),
        (
            "bert_relative_key",
            ours(RelativeEmbedding(WIDTH, 3)),
            "has no q_proj.bias, and BERT's projections have biases; train it with bias=True",
        ),
        (
            "bert_relative_key",
            ours(RelativeEmbedding(WIDTH, 3, num_heads=HEADS), bias=True),
            "has encoding.relative_keys of shape [3, 5, 4], a table for each head, and BERT has one for all; make the "
            "encoding with num_heads=None",
        ),
        (
            "tensor2tensor_relative",
            ours(ShawEmbedding(WIDTH, 2, num_heads=HEADS)),
            "has encoding.relative_keys of shape [3, 5, 4], a table for each head, and dot_product_relative has one "
            "for all; make the encoding with num_heads=None",
        ),
        (
            "returnn_key_shift",
            ours(PER_HEAD) | {"out_proj.weight": torch.eye(DIM)},
            "has encoding.relative_keys of shape [3, 5, 4], a table for each head, and RETURNN's key_shift has one for "
            "all; make the encoding with num_heads=None",
        ),
        (
            "returnn_rel_pos",
            ours(PER_HEAD),
            "has encoding.relative_keys of shape [3, 5, 4], a table for each head, and RETURNN's learned_pos_emb has "
            "one for all; make the encoding with num_heads=None",
        ),
        (
            "returnn_key_shift",
            ours(ShawEmbedding(WIDTH, 2, values=False)),
            "has an out_proj that is not the identity, and SelfAttentionLayer has none; keep it in a layer of its own "
            "and give the identity here",
        ),
        (
            "returnn_key_shift",
            ours(ShawEmbedding(WIDTH, (2, 1), values=False)) | {"out_proj.weight": torch.eye(DIM)},
            "has encoding.relative_keys of shape [1, 4, 4]; expected an odd number of rows, as many on either side",
        ),
        (
            "transfo_xl",
            {name: one for name, one in ours(TransformerXLEmbedding(HEADS, WIDTH)).items() if "k_proj" not in name},
            "has no k_proj.weight, which RelativeMultiheadAttention needs",
        ),
        (
            "transfo_xl",
            ours(TransformerXLEmbedding(HEADS, WIDTH)) | {"k_proj.weight": torch.ones(DIM)},
            "has k_proj.weight of shape [12] and torch.float32; expected floats with 2 axes, none of them empty",
        ),
    ],
)
def test_what_of_ours_they_do_not_hold(target: str, checkpoint: dict[str, Tensor], said: str) -> None:
    with refused(ValueError, f"checkpoint: layer '' {said}"):
        from_relattn(checkpoint, target)


def test_one_bias_for_a_stack_in_which_layers_have_their_own(rng: np.random.Generator) -> None:
    checkpoint = ours(T5Bias(HEADS), "net.layers.0.1.") | ours(T5Bias(HEADS), "net.layers.2.1.")
    with refused(
        ValueError,
        "checkpoint: layer 'net.layers.2.1' makes another net.rel_pos.relative_attention_bias.weight than a layer "
        "before it, and there is one for both",
    ):
        from_relattn(checkpoint, "x_transformers_t5")


def test_a_name_that_is_taken(rng: np.random.Generator) -> None:
    checkpoint = CASES["transfo_xl"].checkpoint()
    checkpoint["transformer.layers.0.dec_attn.q_proj.weight"] = torch.ones(1)
    with refused(ValueError, "checkpoint: layer 'transformer.layers.0.dec_attn' has also q_proj.weight, ..."):
        to_relattn(checkpoint, "transfo_xl")
    taken = ours(TransformerXLEmbedding(HEADS, WIDTH), "a.") | {"a.o_net.weight": torch.ones(1)}
    with refused(ValueError, "checkpoint: a.o_net.weight is there already, beside what a layer becomes"):
        from_relattn(taken, "transfo_xl")


def test_layers_with_an_encoding_of_other_parameters(rng: np.random.Generator) -> None:
    with refused(
        ValueError,
        "checkpoint: layer 'layers.0.1' makes encoding.bias [32, 3], and RelativeMultiheadAttention(12, 3, head_dim=4) "
        "has [16, 3]",
    ):
        layers(x_transformers(), "x_transformers_t5", lambda: T5Bias(HEADS, num_buckets=16))
