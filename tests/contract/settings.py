"""What one call of relative attention may ask for: shapes, positions, masks and scale, drawn at random.

`make_setting` draws through a function `choose(options)`, so that hypothesis (which shrinks) and a plain random
generator (mutation checks) share it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from tests.contract.places import Place, make_places
from tests.oracle import OnAxis

FAR = 2**24 + 43  # a common start this far out shows positions that were held in float32


@dataclass(frozen=True)
class Setting:
    """The arguments of one call but its float tensors; arrays are NumPy, positions as `relative_attention` takes them.

    A 0-d array is a start given as a tensor. segment_ids: one array, or a pair. attn_mask: boolean, or float64 to be
    rounded to the call's dtype, [1 or B, 1 or Hq, 1 or Lq, 1 or Lk]; mask_rank: how many of its last axes are passed.
    dropout_p: above 0 for the backends whose dropout docs/equation.md lays out, with the plain formula for the truth;
    torch's generator starts from `seed`. key_bias: how many batch elements and heads it has. sinks: "per head", or "per
    row". axes: where queries and keys stand on other axes, by name.
    """

    batch: int
    num_heads: int
    num_kv_heads: int
    query_length: int
    key_length: int
    head_dim: int
    value_dim: int
    scale: float | None = None
    query_position: int | np.ndarray = 0
    key_position: int | np.ndarray = 0
    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None
    key_mask: np.ndarray | None = None
    segment_ids: np.ndarray | tuple[np.ndarray, np.ndarray] | None = None
    attn_mask: np.ndarray | None = None
    mask_rank: int = 4
    dropout_p: float = 0.0
    softcap: float | None = None
    key_bias: tuple[int, int] | None = None
    sinks: str | None = None
    seed: int = 0
    axes: Mapping[str, tuple[Place, Place]] = field(default_factory=dict)

    def oracle_keywords(self) -> dict[str, Any]:
        """The keywords of every oracle, less float attn_mask, key_bias and sinks, which are the subject's arrays."""
        return {
            "softcap": self.softcap,
            "scale": self.scale,
            "query_position": self.query_position,
            "key_position": self.key_position,
            "is_causal": self.is_causal,
            "window": self.window,
            "key_mask": self.key_mask,
            "segment_ids": self.segment_ids,
            "attn_mask": self.attn_mask if self.has_boolean_mask else None,
            **({"axes": self.oracle_axes()} if self.axes else {}),
        }

    def oracle_axes(self) -> dict[str, OnAxis]:
        """The positions on other axes as the oracles take them."""
        return {
            name: OnAxis(query.positions, key.positions, (query.prefix_tokens, key.prefix_tokens))
            for name, (query, key) in self.axes.items()
        }

    def torch_keywords(self) -> dict[str, Any]:
        """The same for relattn, with enable_gqa."""
        segments = self.segment_ids
        return {
            "scale": self.scale,
            "query_position": self._places(self.query_position, 0),
            "key_position": self._places(self.key_position, 1),
            "is_causal": self.is_causal,
            "window": self.window,
            "key_mask": tensor_of(self.key_mask),
            "segment_ids": tuple(map(tensor_of, segments)) if isinstance(segments, tuple) else tensor_of(segments),
            "attn_mask": self.shaped_mask(tensor_of(self.attn_mask)) if self.has_boolean_mask else None,
            "enable_gqa": self.num_kv_heads != self.num_heads,
            **({"dropout_p": self.dropout_p} if self.dropout_p else {}),
            **({"softcap": self.softcap} if self.softcap else {}),
        }

    def _places(self, sequence: int | np.ndarray, side: int) -> Any:
        """Where one side stands on every axis; the sequence by its name unless it starts at 0."""
        if not self.axes:
            return tensor_of(sequence)
        others = {name: tensor_of(sides[side].given) for name, sides in self.axes.items()}
        return others if isinstance(sequence, int) and sequence == 0 else {**others, "sequence": tensor_of(sequence)}

    @property
    def has_boolean_mask(self) -> bool:
        return self.attn_mask is not None and self.attn_mask.dtype == bool

    @property
    def has_float_mask(self) -> bool:
        return self.attn_mask is not None and self.attn_mask.dtype != bool

    def shaped_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """The mask with as many axes as the call passes."""
        return mask.reshape(mask.shape[4 - self.mask_rank :])

    def reach(self, axis: str = "sequence") -> int:
        """How many rows on either side of offset 0 a table must have: 1 + the largest |offset| within the limits.

        On another axis nothing limits it.
        """
        if axis != "sequence":
            return reach_of(*self.axes[axis])
        query = np.asarray(self.query_position)
        key = np.asarray(self.key_position)
        query = query + np.arange(self.query_length) if query.ndim == 0 else query
        key = key + np.arange(self.key_length) if key.ndim == 0 else key
        if query.size == 0 or key.size == 0:
            return 1
        first, last = int(key.min() - query.max()), int(key.max() - query.min())
        left, right = self.window or (None, None)
        right = 0 if self.is_causal else right
        first = first if left is None else max(first, -left)
        last = last if right is None else min(last, right)
        return 1 + max(-first, last, 0) if first <= last else 1


def reach_of(query: Place, key: Place) -> int:
    """1 + the largest |offset| of elements that stand on the axis."""
    of_query, of_key = query.extremes(), key.extremes()
    if of_query is None or of_key is None:
        return 1
    return 1 + max(of_key[1] - of_query[0], of_query[1] - of_key[0], 0)


def tensor_of(value: Any) -> Any:
    """A NumPy array as a tensor; anything else as it is."""
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


Choose = Callable[[Sequence[Any]], Any]

WINDOWS = ((2, None), (None, 1), (1, 1), (4, 2), (0, 0), (3, 0))


def make_setting(
    choose: Choose,
    *,
    num_heads: int | None = None,
    is_causal: bool | None = None,
    axes: tuple[str, ...] = (),
    layouts: tuple[str, ...] = (),
    kind: str = "any",
    longest: int = 7,
) -> Setting:
    """Draw a setting. num_heads, is_causal: what a case insists on; axes, layouts: of what kind its positions are.

    kind: "any"; "capped", the same with softcap, key_bias or sinks; "bare", nothing that PyTorch's own attention lacks;
    "diagonal", starts alone, as ints or tensors; "capped diagonal", both; "small", for
    finite differences: few numbers, and every row sees itself, so that lse is finite.
    """
    seed = choose(range(2**32))
    rng = np.random.default_rng(seed)
    heads = choose((1, 2, 3, 4)) if num_heads is None else num_heads
    shape = {
        "batch": choose((1, 2)),
        "num_heads": heads,
        "num_kv_heads": choose([n for n in range(1, heads + 1) if heads % n == 0]),
        "query_length": choose(range(1, longest + 1)),
        "key_length": choose(range(1, longest + 1)),
        "head_dim": choose((2, 4, 6)),
        "value_dim": choose((1, 2, 3, 4)),
        "scale": choose((None, None, 0.4, 1.0)),
        "is_causal": choose((False, False, True)) if is_causal is None else is_causal,
        "seed": seed,
    }
    if axes:
        small = kind == "small"
        shape |= make_places(choose, rng, axes, choose(layouts), shape["batch"], whole=small)
    if kind == "bare":
        return Setting(**shape, **({} if shape["is_causal"] else _pair_mask(choose, rng, shape)))
    if kind == "small":
        shape |= {"head_dim": 2, "value_dim": choose((1, 2))}
        if not axes:
            shape["key_length"] = shape["query_length"]
        return Setting(**shape, window=choose((None, (2, 1))))
    kinds = ("zero", "start", "tensor") if "diagonal" in kind else POSITION_KINDS
    positions = _positions(choose, rng, shape, kinds)
    more = _more_terms(choose, shape) if "capped" in kind else {}
    masks = _masks(choose, rng, shape) | _pair_mask(choose, rng, shape)
    return Setting(**shape, **positions, **masks, **more, window=choose((None,) * len(WINDOWS) + WINDOWS))


POSITION_KINDS = ("zero", "zero", "start", "tensor", "explicit", "explicit per batch")


def _positions(choose: Choose, rng: np.random.Generator, shape: dict[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
    """Queries stand a little later than keys, so that causality leaves some of them something to see."""
    query_kind, key_kind = choose(kinds), choose(kinds)
    far = choose((0, 0, FAR)) if "zero" not in (query_kind, key_kind) else 0
    return {
        "query_position": _position(choose, rng, query_kind, far + 1, shape["batch"], shape["query_length"]),
        "key_position": _position(choose, rng, key_kind, far - 1, shape["batch"], shape["key_length"]),
    }


def _position(
    choose: Choose, rng: np.random.Generator, kind: str, middle: int, batch: int, length: int
) -> int | np.ndarray:
    if kind == "zero":
        return 0
    if kind == "start":
        return middle + choose(range(-3, 4))
    if kind == "tensor":
        return np.array(middle + choose(range(-3, 4)))
    size = length if kind == "explicit" else (batch, length)
    return (middle + rng.integers(-3, 6, size=size)).astype(choose((np.int64, np.int32)))


def _masks(choose: Choose, rng: np.random.Generator, shape: dict[str, Any]) -> dict[str, Any]:
    batch, queries, keys = shape["batch"], shape["query_length"], shape["key_length"]
    masks: dict[str, Any] = {}
    key_mask = choose(("none",) * 6 + ("random",) * 3 + ("all False",))
    if key_mask != "none":
        masks["key_mask"] = (rng.random((batch, keys)) < 0.75) & (key_mask == "random")
    segments = choose(("none",) * 4 + (("pair", "one") if queries == keys else ("pair",)))
    if segments == "one":
        masks["segment_ids"] = np.sort(rng.integers(0, 3, (batch, queries)), axis=1)
    elif segments == "pair":
        masks["segment_ids"] = rng.integers(0, 2, (batch, queries)), rng.integers(0, 2, (batch, keys))
    return masks


def _pair_mask(choose: Choose, rng: np.random.Generator, shape: dict[str, Any]) -> dict[str, Any]:
    explicit = choose(("none", "none", "none", "bool", "float"))
    if explicit == "none":
        return {}
    rank = choose((4, 4, 2))
    full = (shape["batch"], shape["num_heads"], shape["query_length"], shape["key_length"])
    size = tuple(choose((1, whole)) if 4 - axis <= rank else 1 for axis, whole in enumerate(full))
    allowed = rng.random(size) < 0.75
    mask = allowed if explicit == "bool" else np.where(allowed, rng.normal(size=size), -np.inf)
    return {"attn_mask": mask, "mask_rank": rank}


def _more_terms(choose: Choose, shape: dict[str, Any]) -> dict[str, Any]:
    """Any of the three terms, most often all; a cap that few scores are far below."""
    batch, heads = shape["batch"], shape["num_heads"]
    return {
        "softcap": choose((None, 1.0, 2.5, 30)),
        "key_bias": choose((None, (batch, heads), (1, heads), (batch, 1), (1, 1))),
        "sinks": choose((None, "per head", "per row")),
    }


def settings_of(**requirements: Any) -> st.SearchStrategy[Setting]:
    """Every setting that `make_setting(**requirements)` may draw."""

    @st.composite
    def strategy(draw: Any) -> Setting:
        return make_setting(lambda options: draw(st.sampled_from(options)), **requirements)

    return strategy()


def random_setting(rng: np.random.Generator, **requirements: Any) -> Setting:
    """One of them, from a random generator."""
    return make_setting(lambda options: options[int(rng.integers(len(options)))], **requirements)
