"""RelativeMultiheadAttention.from_torch: torch.nn.MultiheadAttention's weights, outputs and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relattn import ShawEmbedding, T5Bias
from relattn.nn import RelativeMultiheadAttention
from tests.contract.calls import assert_equal

B, LQ, LK, WIDTH, HEADS = 2, 5, 7, 12, 3
FORMS: dict[str, dict[str, Any]] = {
    "in_proj_weight": {},
    "in_proj_weight, no bias": {"bias": False},
    "three weights": {"kdim": 8, "vdim": 10},
    "three weights, no bias": {"kdim": 8, "vdim": 10, "bias": False},
}
every_form = pytest.mark.parametrize("form", FORMS)


def theirs(form: str = "in_proj_weight", dtype: torch.dtype = torch.float64, **keywords: Any) -> nn.MultiheadAttention:
    """A module whose every parameter is random; torch starts biases at zero."""
    module = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, "dtype": dtype, **FORMS[form], **keywords})
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def inputs(module: nn.MultiheadAttention) -> list[Tensor]:
    """Query, key and value of a cross-attention, leaves."""
    sizes = (B, LQ, WIDTH), (B, LK, module.kdim), (B, LK, module.vdim)
    return [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]


def split_in_projection(
    module: nn.MultiheadAttention, of: Callable[[nn.Parameter], Tensor | None]
) -> dict[str, Tensor | None]:
    """Something of each of their parameters, of which they keep three in one, by the names of ours."""
    names = "q_proj", "k_proj", "v_proj"
    if module.in_proj_weight is None:
        weights = tuple(of(w) for w in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight))
    else:
        weights = of(module.in_proj_weight).split(WIDTH)
    found = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    found["out_proj.weight"] = of(module.out_proj.weight)
    if module.in_proj_bias is not None:
        found |= {f"{name}.bias": b for name, b in zip(names, of(module.in_proj_bias).split(WIDTH), strict=True)}
        found["out_proj.bias"] = of(module.out_proj.bias)
    return found


def masks() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What each side is told; every query keeps some key, for torch's gives NaN where it has none."""
    forbidden = torch.rand(LQ, LK) < 0.4
    padding = torch.zeros(B, LK, dtype=torch.bool)
    padding[0, -2:] = True
    forbidden[:, 0] = False
    added = torch.randn(LQ, LK, dtype=torch.float64)
    of_heads = torch.rand(B, HEADS, LQ, LK) < 0.4
    of_heads[..., 0] = False
    return {
        "none": ({}, {}),
        "boolean": ({"attn_mask": forbidden}, {"attn_mask": ~forbidden}),
        "float": ({"attn_mask": added}, {"attn_mask": added}),
        "padding": ({"key_padding_mask": padding}, {"key_mask": ~padding}),
        "boolean and padding": (
            {"attn_mask": forbidden, "key_padding_mask": padding},
            {"attn_mask": ~forbidden, "key_mask": ~padding},
        ),
        "one for every head": ({"attn_mask": of_heads.flatten(0, 1)}, {"attn_mask": ~of_heads}),
    }


@pytest.mark.one_in(3)
@every_form
@pytest.mark.parametrize("mask", masks())
def test_outputs_and_gradients_are_torch_s(form: str, mask: str) -> None:
    module = theirs(form)
    ours = RelativeMultiheadAttention.from_torch(module)
    for_torch, for_ours = masks()[mask]
    their_inputs = inputs(module)
    our_inputs = [tensor.detach().clone().requires_grad_() for tensor in their_inputs]
    expected = module(*their_inputs, **for_torch, need_weights=False)[0]
    output = ours(*our_inputs, **for_ours)
    assert_equal(output, expected)
    cotangent = torch.randn_like(expected)
    expected.backward(cotangent)
    output.backward(cotangent)
    for one, other in zip(our_inputs, their_inputs, strict=True):
        assert_equal(one.grad, other.grad)
    assert_equal(
        {name: parameter.grad for name, parameter in ours.named_parameters()},
        split_in_projection(module, lambda p: p.grad),
    )


def test_a_mask_that_is_not_turned_around_gives_other_numbers() -> None:
    module = theirs()
    leaves, (for_torch, for_ours) = inputs(module), masks()["boolean"]
    expected = module(*leaves, **for_torch)[0]
    ours = RelativeMultiheadAttention.from_torch(module)
    assert (ours(*leaves, **for_ours) - expected).abs().max() < 1e-10
    assert (ours(*leaves, **for_torch) - expected).abs().max() > 1e-3


def test_a_query_without_keys_gives_the_bias_where_torch_s_gives_nan() -> None:
    module = theirs()
    leaves, forbidden = inputs(module), torch.zeros(LQ, LK, dtype=torch.bool)
    forbidden[2] = True
    expected = module(*leaves, attn_mask=forbidden)[0]
    output = RelativeMultiheadAttention.from_torch(module)(*leaves, attn_mask=~forbidden)
    assert expected[:, 2].isnan().all()
    assert_equal(output[:, 2], module.out_proj.bias.expand(B, WIDTH))
    assert_equal(output[:, :2], expected[:, :2])


def test_length_first_modules_are_taken_over_too() -> None:
    module = theirs(batch_first=False)
    leaves = inputs(module)
    expected = module(*(tensor.transpose(0, 1) for tensor in leaves))[0].transpose(0, 1)
    assert_equal(RelativeMultiheadAttention.from_torch(module)(*leaves), expected)


@every_form
def test_parameters_are_copies_of_their_own(form: str) -> None:
    module = theirs(form)
    ours = RelativeMultiheadAttention.from_torch(module)
    assert dict(ours.named_parameters()).keys() == split_in_projection(module, lambda p: p).keys()
    taken = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages = [parameter.untyped_storage() for parameter in ours.parameters()]
    assert len({storage.data_ptr() for storage in storages} | taken) == len(storages) + len(taken)
    for parameter, storage in zip(ours.parameters(), storages, strict=True):
        assert parameter.requires_grad and parameter.is_leaf and parameter.is_contiguous()
        assert storage.nbytes() == parameter.numel() * parameter.element_size()  # no view of all three


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_dtype_dropout_and_mode_are_kept(dtype: torch.dtype, training: bool) -> None:
    module = theirs("three weights", dtype, dropout=0.25).train(training)
    encoding, before = T5Bias(HEADS), torch.get_rng_state()
    ours = RelativeMultiheadAttention.from_torch(module, encoding)
    assert torch.equal(torch.get_rng_state(), before)  # no weight was drawn to be thrown away
    assert {parameter.dtype for parameter in ours.out_proj.parameters()} == {dtype}
    assert (ours.dropout, ours.training, encoding.training) == (0.25, training, training)
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim) == (HEADS, HEADS, WIDTH // HEADS)


def test_the_device_is_kept() -> None:
    ours = RelativeMultiheadAttention.from_torch(nn.MultiheadAttention(WIDTH, HEADS, device="meta"))
    assert {parameter.device.type for parameter in ours.parameters()} == {"meta"}


def test_an_encoding_comes_beside_the_weights() -> None:
    module = theirs()
    encoding = ShawEmbedding(WIDTH // HEADS, 3).double()
    ours = RelativeMultiheadAttention.from_torch(module, encoding)
    same = RelativeMultiheadAttention(WIDTH, HEADS, encoding).double()
    same.load_state_dict(ours.state_dict())
    x = inputs(module)[0]
    assert ours.encoding is encoding
    assert_equal(ours(x), same(x))
    assert (ours(x) - module(x, x, x)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("kdim", [None, 6], ids=["one weight", "three weights"])
@torch.no_grad()
def test_what_is_frozen_stays_frozen(kdim: int | None) -> None:
    attention = nn.MultiheadAttention(8, 2, kdim=kdim)
    for name, parameter in attention.named_parameters():
        parameter.requires_grad_(name in ("in_proj_bias", "out_proj.weight"))
    ours = RelativeMultiheadAttention.from_torch(attention)
    trained = {name for name, parameter in ours.named_parameters() if parameter.requires_grad}
    assert trained == {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.weight"}
