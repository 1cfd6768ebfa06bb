"""There and back: the same names and the same bits, in both directions; what is no attention is handed on."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import (
    KeyQueryEmbedding,
    RelativeEmbedding,
    RelativeEncoding,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
)
from relattn.convert import from_relattn, layers, to_relattn
from relattn.nn import RelativeMultiheadAttention
from tests.convert.cases import CASES, DIM, HEADS, TIED, WIDTH

pytest_plugins = ["tests.contract.fresh"]


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].is_contiguous(), name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_comes_back_as_it_was(name: str, dtype: torch.dtype, rng: np.random.Generator) -> None:
    case = CASES[name]
    checkpoint = {one: tensor.to(dtype) for one, tensor in case.checkpoint().items()}
    converted = to_relattn(checkpoint, case.source)
    assert all(converted[one] is checkpoint[one] for one in case.others)
    assert_same_bits(from_relattn(converted, case.source), checkpoint)


def test_a_checkpoint_is_left_as_it_is(rng: np.random.Generator) -> None:
    checkpoint = CASES["transfo_xl"].checkpoint()
    before = {name: tensor.clone() for name, tensor in checkpoint.items()}
    for tensor in to_relattn(checkpoint, "transfo_xl").values():
        if all(tensor is not one for one in checkpoint.values()):
            tensor.zero_()
    assert_same_bits(checkpoint, before)


OURS: dict[str, tuple[str, RelativeEncoding, bool]] = {
    "bert_relative_key": ("bert_relative_key", RelativeEmbedding(WIDTH, 5), True),
    "bert_relative_key_query": ("bert_relative_key_query", KeyQueryEmbedding(WIDTH, 5), True),
    "transfo_xl": ("transfo_xl", TransformerXLEmbedding(HEADS, WIDTH), False),
    "t2t_shaw": ("tensor2tensor_relative", ShawEmbedding(WIDTH, 3), False),
    "t2t_masked": ("tensor2tensor_relative_v2", RelativeEmbedding(WIDTH, 4, causal=True, beyond="zero"), False),
    "t2t_per_head": (
        "tensor2tensor_unmasked_relative_v2", RelativeEmbedding(WIDTH, 4, num_heads=HEADS, beyond="zero"), False,
    ),
    "returnn_rel_pos": ("returnn_rel_pos", TransformerXLEmbedding(HEADS, WIDTH, embed_dim=DIM), True),
    "returnn_rel_pos_no_bias": ("returnn_rel_pos", TransformerXLEmbedding(HEADS, WIDTH, embed_dim=DIM), False),
    "returnn_rel_pos_shaw": ("returnn_rel_pos", ShawEmbedding(WIDTH, 3, values=False), True),
    "x_transformers": ("x_transformers_t5", T5Bias(HEADS), False),
}  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_our_module_comes_back_as_it_was(name: str, rng: np.random.Generator) -> None:
    """With heads of width 4, whose root is exact; and `layers` finds the encoding again."""
    target, encoding, bias = OURS[name]
    module = RelativeMultiheadAttention(DIM, HEADS, encoding, bias=bias)
    weights = {one: torch.randn_like(tensor) for one, tensor in module.state_dict().items()}
    others = {"cross.q_proj.weight": torch.randn(2, 2), "embedding.weight": torch.randn(3, DIM)}
    ours = {f"decoder.0.{one}": tensor for one, tensor in weights.items()} | others
    theirs = from_relattn(ours, target)
    assert all(theirs[one] is tensor for one, tensor in others.items())
    assert_same_bits(to_relattn(theirs, target), ours)
    (again,) = layers(theirs, target).values()
    assert repr(again.encoding) == repr(encoding)
    assert_same_bits(dict(again.state_dict()), weights)


ONE_HEAD: dict[str, Callable[[int], RelativeEncoding]] = {
    "bert_relative_key": lambda width: RelativeEmbedding(width, 5),
    "bert_relative_key_query": lambda width: KeyQueryEmbedding(width, 5),
    "transfo_xl": lambda width: TransformerXLEmbedding(1, width),
    "tensor2tensor_relative": lambda width: ShawEmbedding(width, 3),
    "tensor2tensor_relative_v2": lambda width: RelativeEmbedding(width, 1, causal=True, beyond="zero"),
    "tensor2tensor_unmasked_relative_v2": lambda width: RelativeEmbedding(width, 4, beyond="zero"),
    "returnn_key_shift": lambda width: ShawEmbedding(width, 3, values=False),
    "returnn_rel_pos": lambda width: TransformerXLEmbedding(1, width, embed_dim=width),
    "x_transformers_t5": lambda width: T5Bias(1),
}
EVEN = ("transfo_xl", "returnn_rel_pos")
"""Formats with sinusoids, whose width is even."""


@pytest.mark.parametrize("target", ONE_HEAD)
@pytest.mark.parametrize("identity", [False, True])
def test_one_head_of_an_odd_width(target: str, identity: bool, rng: np.random.Generator) -> None:
    width = 6 if target in EVEN else 5
    encoding = ONE_HEAD[target](width)
    module = RelativeMultiheadAttention(width, 1, encoding, bias=target.startswith("bert"))
    ours = {name: torch.randn_like(tensor) for name, tensor in module.state_dict().items()}
    if identity or target == "returnn_key_shift":
        ours["out_proj.weight"] = torch.eye(width)
    theirs = from_relattn(ours, target)
    assert_same_bits(from_relattn(to_relattn(theirs, target), target), theirs)
    ((again,), back) = layers(theirs, target).values(), to_relattn(theirs, target)
    assert repr(again.encoding) == repr(encoding)
    if target == "x_transformers_t5":  # multiplied and divided by the root of 5
        torch.testing.assert_close(back.pop("encoding.bias"), ours.pop("encoding.bias"), rtol=2.0**-22, atol=0.0)
    assert_same_bits(back, ours)


@pytest.mark.parametrize("name", ["t2t_masked_per_head", "t2t_unmasked_per_head_long"])
def test_a_table_of_one_head_keeps_its_axis(name: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    checkpoint = {one: torch.randn(WIDTH, WIDTH) for one in case.checkpoint() if one.endswith("kernel")}
    checkpoint |= {one: tensor[:1] for one, tensor in case.checkpoint().items() if one.endswith("relative_embeddings")}
    assert_same_bits(from_relattn(to_relattn(checkpoint, case.source), case.source), checkpoint)


@pytest.mark.parametrize("depth", [1, 2])
def test_x_transformers_of_one_head_has_no_output_projection(depth: int, rng: np.random.Generator) -> None:
    """The bias comes back within two roundings."""
    from x_transformers import Encoder

    stack = Encoder(dim=9, depth=depth, heads=1, attn_dim_head=9, rel_pos_bias=True)
    checkpoint = {name: torch.randn_like(one) for name, one in stack.state_dict().items()}
    name = "rel_pos.relative_attention_bias.weight"
    converted = to_relattn(checkpoint, "x_transformers_t5")
    assert torch.equal(converted["layers.0.1.out_proj.weight"], torch.eye(9))
    again = from_relattn(converted, "x_transformers_t5")
    torch.testing.assert_close(again.pop(name), checkpoint.pop(name), rtol=2.0**-22, atol=0.0)
    assert_same_bits(again, checkpoint)


def test_returnn_without_a_projection_has_the_identity(rng: np.random.Generator) -> None:
    checkpoint = {name: one for name, one in CASES["returnn_key_shift"].checkpoint().items() if "_lin" not in name}
    ours = to_relattn(checkpoint, "returnn_key_shift")
    assert torch.equal(ours["enc_1_self_att_att/out_proj.weight"], torch.eye(DIM))
    without = {"qkv.weight": torch.randn(DIM, 3 * DIM), "qkv.bias": torch.randn(3 * DIM)}
    without |= {"learned_pos_emb.pos_emb": torch.randn(5, WIDTH)}
    ours = to_relattn(without, "returnn_rel_pos")
    assert torch.equal(ours["out_proj.weight"], torch.eye(DIM))
    assert not ours["out_proj.bias"].any()
    assert_same_bits(from_relattn(ours, "returnn_rel_pos"), without)


def test_a_table_that_stands_elsewhere_is_written_under_a_name_of_the_layer(rng: np.random.Generator) -> None:
    """RETURNN's config names the layers; ours are the names of its documentation."""
    numbers = {"QKV": torch.randn(DIM, 3 * DIM), "encoding_matrix": torch.randn(5, WIDTH)}
    for before, after in {
        ("", ""): ("", ""),
        ("enc_self_att_att/", "enc_rel_pos/"): ("enc_self_att_att/", "enc_rel_pos/"),
        ("block_att/", "block_positions/"): ("block_att/", "block_att_rel_pos/"),
    }.items():
        checkpoint = {place + name: one for place, (name, one) in zip(before, numbers.items(), strict=True)}
        expected = {place + name: one for place, (name, one) in zip(after, numbers.items(), strict=True)}
        assert_same_bits(from_relattn(to_relattn(checkpoint, "returnn_key_shift"), "returnn_key_shift"), expected)


def test_biases_that_all_layers_share_come_back_once_a_layer(rng: np.random.Generator) -> None:
    checkpoint = TIED.checkpoint()
    again = from_relattn(to_relattn(checkpoint, "transfo_xl"), "transfo_xl")
    for layer in TIED.layers:
        for bias in ("r_w_bias", "r_r_bias"):
            assert torch.equal(again.pop(layer + bias), checkpoint[bias])
    assert_same_bits(again, {name: one for name, one in checkpoint.items() if "bias" not in name})


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_x_transformers_has_one_bias_for_a_stack(kv_heads: int, rng: np.random.Generator) -> None:
    """Width 8: its root rounds, so the bias comes back within two roundings; all else bit by bit."""
    from x_transformers import Encoder

    stack = Encoder(dim=32, depth=2, heads=4, attn_dim_head=8, attn_kv_heads=kv_heads, rel_pos_bias=True)
    checkpoint = {name: torch.randn_like(one) for name, one in stack.state_dict().items()}
    name = "rel_pos.relative_attention_bias.weight"
    converted = to_relattn(checkpoint, "x_transformers_t5")
    assert name not in converted
    again = from_relattn(converted, "x_transformers_t5")
    torch.testing.assert_close(again.pop(name), checkpoint.pop(name), rtol=2.0**-23, atol=0.0)
    assert_same_bits(again, checkpoint)
