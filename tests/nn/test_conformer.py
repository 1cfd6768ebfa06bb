"""RelPositionMultiHeadedAttention gives ESPnet's and NeMo's numbers from their weights: whole, masked, in chunks."""

import copy
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from relattn.nn import KVCache, RelPositionMultiHeadedAttention
from tests.contract.calls import EXACT
from tests.contract.check import numpy_of
from tests.oracle import assert_within_budget, complex_step_gradients, conformer, max_error

pytest_plugins = ["tests.contract.fresh"]

HEADS, D_K, LENGTH = 2, 4, 9
WIDTH = HEADS * D_K
PADDED = np.array([[True] * LENGTH, [True] * (LENGTH - 3) + [False] * 3])
UNPADDED = np.ones((2, LENGTH), dtype=bool)


def shapes(bias: bool) -> dict[str, tuple[int, ...]]:
    """The state_dict of their module, as they name and shape it."""
    found: dict[str, tuple[int, ...]] = {"pos_bias_u": (HEADS, D_K), "pos_bias_v": (HEADS, D_K)}
    for name in ("linear_q", "linear_k", "linear_v", "linear_out"):
        found[f"{name}.weight"] = (WIDTH, WIDTH)
        if bias:
            found[f"{name}.bias"] = (WIDTH,)
    return found | {"linear_pos.weight": (WIDTH, WIDTH)}


def weights(bias: bool = True, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A checkpoint of one layer; every number as likely in one place as in another, so that none can be swapped."""
    return {name: torch.randn(shape, dtype=dtype) / np.sqrt(shape[-1]) for name, shape in shapes(bias).items()}


def layer_with(checkpoint: dict[str, Tensor], backend: str = "auto") -> RelPositionMultiHeadedAttention:
    layer = RelPositionMultiHeadedAttention(WIDTH, HEADS, bias="linear_q.bias" in checkpoint, backend=backend)
    layer.to(checkpoint["pos_bias_u"].dtype).load_state_dict(checkpoint)
    return layer


def chunk_mask(left: int, right: int, length: int) -> Tensor:
    """Which pairs NeMo's chunked_limited style lets attend."""
    chunk = torch.arange(length) // (right + 1)
    behind = chunk.unsqueeze(1) - chunk
    return (behind >= 0) & (behind <= left // (right + 1))


# --- the checkpoint ---


@pytest.mark.parametrize("bias", [True, False], ids=["ESPnet, NeMo", "NeMo with use_bias=False"])
def test_the_state_dict_has_their_names_and_shapes(bias: bool) -> None:
    layer = RelPositionMultiHeadedAttention(WIDTH, HEADS, bias=bias)
    assert {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()} == shapes(bias)
    assert {name for name, _ in layer.named_parameters()} == set(shapes(bias))


@pytest.mark.parametrize("bias", [True, False])
def test_their_weights_load_strictly_and_come_back(bias: bool) -> None:
    checkpoint = weights(bias, torch.float32)
    layer = layer_with(checkpoint)
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, checkpoint[name]), name


@pytest.mark.parametrize("extra", ["global_q.weight", "q_norm.weight"])
def test_weights_of_another_attention_do_not_load(extra: str) -> None:
    """NeMo's Longformer with separate global projections; ESPnet with normalised queries."""
    with pytest.raises(RuntimeError, match=f'Unexpected key.*"{extra}"'):
        layer_with({**weights(), extra: torch.randn(WIDTH, WIDTH)})


def test_layers_may_share_the_biases() -> None:
    """NeMo's untie_biases=False: one parameter under two names, which every layer's state_dict carries."""
    first, second = (RelPositionMultiHeadedAttention(WIDTH, HEADS) for _ in range(2))
    second.pos_bias_u, second.pos_bias_v = first.pos_bias_u, first.pos_bias_v
    layers = torch.nn.ModuleList([first, second])
    assert len(list(layers.parameters())) == 2 * len(shapes(True)) - 2
    assert len(layers.state_dict()) == 2 * len(shapes(True))
    torch.nn.init.normal_(first.pos_bias_u)
    x = torch.randn(1, LENGTH, WIDTH)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(x), first(x))


# --- the numbers ---


class Case(NamedTuple):
    """What limits attention there: padding, att_context_size and att_context_style; and how it is said here."""

    kept: np.ndarray
    left: int = -1
    right: int = -1
    style: str = "regular"

    def dropped(self) -> np.ndarray:
        return conformer.dropped_pairs(self.kept, self.left, self.right, self.style)

    def keywords(self) -> dict[str, object]:
        """Padding neither attends nor is attended to: two segments, of which padding's has no key."""
        keywords: dict[str, object] = {}
        if not self.kept.all():
            kept = torch.from_numpy(self.kept)
            keywords = {"key_mask": kept, "segment_ids": kept.long()}
        if self.style == "chunked_limited":
            return {**keywords, "attn_mask": chunk_mask(self.left, self.right, self.kept.shape[1])}
        if (self.left, self.right) != (-1, -1):
            keywords["window"] = tuple(None if side < 0 else side for side in (self.left, self.right))
        return keywords


CASES = {
    "unlimited": Case(UNPADDED),
    "unlimited, padded": Case(PADDED),
    "[3, 2]": Case(UNPADDED, 3, 2),
    "[4, 0], padded": Case(PADDED, 4, 0),
    "[-1, 1]": Case(UNPADDED, -1, 1),
    "[2, -1], padded": Case(PADDED, 2, -1),
    "[0, 0]": Case(UNPADDED, 0, 0),
    "[4, 1] chunked": Case(UNPADDED, 4, 1, "chunked_limited"),
    "[3, 2] chunked, padded": Case(PADDED, 3, 2, "chunked_limited"),
    "[0, 3] chunked": Case(UNPADDED, 0, 3, "chunked_limited"),
}


def published(p: dict[str, Tensor], dropped: Tensor, pos_emb: Tensor) -> tuple[Tensor, Tensor]:
    """Their forward pass in torch: (output, scores), in the dtype of the weights p, which hold the input x as well."""
    x = p["x"]

    def heads(rows: Tensor, name: str) -> Tensor:
        projected = F.linear(rows, p[f"{name}.weight"], p.get(f"{name}.bias"))
        return projected.unflatten(-1, (HEADS, D_K)).transpose(-3, -2)

    q, k, v = (heads(x, name) for name in ("linear_q", "linear_k", "linear_v"))
    length = x.shape[1]
    q_with_u, q_with_v = (q + p[name].unsqueeze(1) for name in ("pos_bias_u", "pos_bias_v"))
    matrix_bd = q_with_v @ heads(pos_emb, "linear_pos").transpose(-2, -1)
    matrix_bd = F.pad(matrix_bd, (1, 0)).view(len(x), HEADS, 2 * length, length)[:, :, 1:]
    matrix_bd = matrix_bd.reshape(len(x), HEADS, length, 2 * length - 1)[..., :length]
    scores = (q_with_u @ k.transpose(-2, -1) + matrix_bd) / D_K**0.5
    drop = dropped.unsqueeze(1)
    attn = scores.masked_fill(drop, conformer.MASKED).softmax(-1).masked_fill(drop, 0.0)
    context = (attn @ v).transpose(1, 2).flatten(2)
    return F.linear(context, p["linear_out.weight"], p.get("linear_out.bias")), scores


@pytest.mark.one_in(3)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_theirs(name: str, dtype: str, bias: bool, rng: np.random.Generator) -> None:
    case, torch_dtype = CASES[name], getattr(torch, dtype)
    layer = layer_with(weights(bias, torch_dtype))
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch_dtype, requires_grad=True)
    cotangent = torch.randn(2, LENGTH, WIDTH, dtype=torch_dtype)
    leaves = {"x": x, **dict(layer.named_parameters())}
    dropped = case.dropped()

    def function(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return conformer.attention(arrays["x"], arrays, dropped)

    numbers = {one: numpy_of(leaf) for one, leaf in leaves.items()}
    truths = {"output": function(numbers), **complex_step_gradients(function, numbers, numpy_of(cotangent))}

    ours = layer(x, **case.keywords())
    found = {"output": ours, **gradients(ours, leaves, cotangent)}

    pos_emb = torch.from_numpy(conformer.pos_emb(LENGTH, WIDTH)[None]).to(torch_dtype)
    theirs, scores = published(leaves, torch.from_numpy(dropped), pos_emb)
    plain = {"output": theirs, **gradients(theirs, leaves, cotangent)}
    # The scores' gradients sum to zero in every row, so sums of them cancel: the budget asks for the size of the terms.
    (of_scores,) = torch.autograd.grad(theirs, scores, cotangent, retain_graph=True)
    sizes = {one: leaf.detach().abs().requires_grad_() for one, leaf in leaves.items()}
    _, bound = published(sizes, torch.from_numpy(dropped), pos_emb.abs())
    summed = gradients(bound, sizes, of_scores.abs())

    score = 2 * WIDTH + 2 * D_K
    output = score + LENGTH + 2 * WIDTH
    for one, truth in truths.items():
        terms = output if one == "output" else 2 * output + x.shape[0] * LENGTH * LENGTH
        magnitude = max(np.abs(truth).max(), 0.0 if one == "output" else summed[one].max().item())
        plain_error = max_error(numpy_of(plain[one]), truth)
        assert_within_budget(numpy_of(found[one]), truth, plain_error, terms, dtype, one, magnitude=magnitude)


def gradients(output: Tensor, leaves: dict[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
    """Those of <cotangent, output> by every leaf, zero for one that takes no part."""
    found = torch.autograd.grad(
        output, list(leaves.values()), cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("backend", ["reference", "dense", "blocks"])
@pytest.mark.parametrize("name", ["unlimited", "[4, 0], padded", "[3, 2] chunked, padded"])
def test_every_backend_gives_their_numbers(name: str, backend: str, rng: np.random.Generator) -> None:
    checkpoint, case = weights(), CASES[name]
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    layer = layer_with(checkpoint, backend)
    assert_theirs(layer(x, **case.keywords()), x, checkpoint, case.dropped())
    mask = torch.from_numpy(case.dropped())
    assert_theirs(layer(x, attn_mask=~mask.unsqueeze(1)), x, checkpoint, case.dropped())


def test_espnet_s_mask_keeps_keys_and_lets_padding_look(rng: np.random.Generator) -> None:
    """Its mask [B, 1, L] is True where a key is kept, which is key_mask; padded queries attend like any other."""
    checkpoint, mask = weights(), PADDED[:, None]
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    output = layer_with(checkpoint)(x, key_mask=torch.from_numpy(mask[:, 0]))
    assert_theirs(output, x, checkpoint, np.broadcast_to(~mask, (2, LENGTH, LENGTH)))


def test_dropout_takes_the_weights_away_in_training_alone(rng: np.random.Generator) -> None:
    layer = RelPositionMultiHeadedAttention(WIDTH, HEADS, dropout=1.0)
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(layer(x), layer.linear_out.bias.expand_as(x))
    assert not torch.allclose(layer.eval()(x), layer.linear_out.bias)


def assert_theirs(output: Tensor, x: Tensor, checkpoint: dict[str, Tensor], dropped: np.ndarray) -> None:
    arrays = {name: numpy_of(tensor) for name, tensor in checkpoint.items()}
    truth = conformer.attention(numpy_of(x), arrays, dropped)
    np.testing.assert_allclose(numpy_of(output), truth, **EXACT)


def test_copies_compute_with_their_own_weights(rng: np.random.Generator) -> None:
    """The encoding reads the layer's parameters, so a copy's must not read the original's."""
    first, second = weights(), weights()
    layer, x = layer_with(first), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    unlimited = np.zeros((1, LENGTH, LENGTH), dtype=bool)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        copied.load_state_dict(second)
        assert_theirs(copied(x), x, second, unlimited)
    assert_theirs(torch.func.functional_call(layer, second, (x,)), x, second, unlimited)
    assert_theirs(layer(x), x, first, unlimited)


def test_a_reset_leaves_nothing_of_the_old_weights() -> None:
    layer = layer_with(weights(dtype=torch.float32))
    before = {name: parameter.clone() for name, parameter in layer.named_parameters()}
    layer.reset_parameters()
    assert set(before) == set(shapes(True))
    for name, parameter in layer.named_parameters():
        assert not (parameter == before[name]).any(), name
    assert not layer.pos_bias_u.any() and not layer.pos_bias_v.any()


# --- in chunks ---


def streamed(
    layer: RelPositionMultiHeadedAttention, x: Tensor, size: int, left: int, ahead: int = 0, **keywords: object
) -> Tensor:
    """The layer over x in chunks that see `left` positions before them; each brings the next `ahead` with it."""
    cache, outputs = KVCache(), []
    for start in range(0, x.shape[1], size):
        cache.forget(max(cache.first_position, start - left))
        chunk = x[:, start : start + size + ahead]
        outputs.append(layer(chunk, cache=cache, **keywords)[:, :size])
        cache.truncate(min(start + size, x.shape[1]))
    return torch.cat(outputs, dim=1)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("left", "right"), [(4, 1), (3, 2), (0, 3), (8, 3), (3, 0)])
def test_chunked_limited_in_one_pass_and_chunk_by_chunk(left: int, right: int, rng: np.random.Generator) -> None:
    """NeMo's chunked_limited as a mask, as a batch of chunks, and as a stream through a cache that forgets."""
    checkpoint, length, size = weights(), 13, right + 1
    layer = layer_with(checkpoint)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    dropped = conformer.dropped_pairs(np.ones((2, length), dtype=bool), left, right, "chunked_limited")
    mask = chunk_mask(left, right, length)
    assert_theirs(layer(x, attn_mask=mask), x, checkpoint, dropped)
    # The window drops no pair that the mask keeps; it tells which tiles hold none.
    assert_theirs(layer(x, attn_mask=mask, window=(left + right, right)), x, checkpoint, dropped)
    with torch.no_grad():
        assert_theirs(streamed(layer, x, size, left), x, checkpoint, dropped)

    chunks = -(-length // size)
    padded = F.pad(x, (0, 0, left, chunks * size - length))
    there = F.pad(torch.ones(2, length, dtype=torch.bool), (left, chunks * size - length))
    queries = padded[:, left:].unflatten(1, (chunks, size)).flatten(0, 1)
    keys = padded.unfold(1, left + size, size).transpose(-2, -1).flatten(0, 1)
    kept = there.unfold(1, left + size, size).flatten(0, 1)
    folded = layer(queries, keys, key_mask=kept, query_position=left)
    assert_theirs(folded.unflatten(0, (2, chunks)).flatten(1, 2)[:, :length], x, checkpoint, dropped)


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("left", "right"), [(3, 0), (4, 2), (0, 2), (5, 1)])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_regular_contexts_chunk_by_chunk(left: int, right: int, size: int, rng: np.random.Generator) -> None:
    """NeMo's regular style: what a chunk needs of the future comes with it, and is taken back until its turn."""
    checkpoint, length = weights(), 13
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    dropped = conformer.dropped_pairs(np.ones((2, length), dtype=bool), left, right)
    with torch.no_grad():
        output = streamed(layer_with(checkpoint), x, size, left, ahead=right, window=(left, right))
    assert_theirs(output, x, checkpoint, dropped)


@pytest.mark.parametrize("style", ["regular", "chunked_limited"])
def test_a_stream_has_the_gradients_of_one_pass(style: str, rng: np.random.Generator) -> None:
    left, right, length = 6, 2, 13
    layer = layer_with(weights())
    leaves = {"x": torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)}
    leaves |= dict(layer.named_parameters())
    if style == "regular":
        whole = layer(leaves["x"], window=(left, right))
        stream = streamed(layer, leaves["x"], 4, left, ahead=right, window=(left, right))
    else:
        whole = layer(leaves["x"], attn_mask=chunk_mask(left, right, length))
        stream = streamed(layer, leaves["x"], right + 1, left)
    cotangent = torch.randn_like(whole)
    torch.testing.assert_close(gradients(stream, leaves, cotangent), gradients(whole, leaves, cotangent), **EXACT)


@pytest.mark.parametrize("sizes", [[1] * 13, [4, 1, 6, 2]])
def test_a_causal_context_rolls(sizes: list[int], rng: np.random.Generator) -> None:
    """att_context_size=[4, 0] is a cache of five."""
    checkpoint = weights()
    layer, x = layer_with(checkpoint), torch.randn(2, 13, WIDTH, dtype=torch.float64)
    cache = KVCache(max_length=5)
    with torch.no_grad():
        output = torch.cat([layer(chunk, is_causal=True, cache=cache) for chunk in x.split(sizes, dim=1)], dim=1)
    dropped = conformer.dropped_pairs(np.ones((2, 13), dtype=bool), 4, 0)
    assert_theirs(output, x, checkpoint, dropped)


def test_a_step_of_the_stream_is_nemo_s_with_its_cache(rng: np.random.Generator) -> None:
    """NeMo keeps the inputs of the left context and projects them again; we keep their keys and values."""
    checkpoint = weights()
    layer, x = layer_with(checkpoint), torch.randn(2, 7, WIDTH, dtype=torch.float64)
    cache = KVCache()
    with torch.no_grad():
        layer(x[:, :4], cache=cache)
        output = layer(x[:, 4:], cache=cache)
    arrays = {name: numpy_of(tensor) for name, tensor in checkpoint.items()}
    truth = conformer.attention(numpy_of(x[:, 4:]), arrays, cached=numpy_of(x[:, :4]))
    np.testing.assert_allclose(numpy_of(output), truth, **EXACT)


def test_a_stream_projects_the_sinusoids_once(rng: np.random.Generator) -> None:
    """Every chunk sees the same offsets; the cache keeps their rows."""
    layer, rows = layer_with(weights()), []
    layer.linear_pos.register_forward_hook(lambda module, arguments, output: rows.append(len(arguments[0])))
    with torch.no_grad():
        streamed(layer, torch.randn(1, 20, WIDTH, dtype=torch.float64), size=4, left=4)
    assert rows == [7, 4]
