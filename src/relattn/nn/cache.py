"""KVCache: the keys and values that decoding has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, ref

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relattn.arguments import check_size
from relattn.errors import ShapeError
from relattn.score.checks import INTEGER_DTYPES, check_float, shape
from relattn.score.positions import Span


class KVCache:
    """Prepared keys [B, Hk, L, D] and values [B, Hk, L, Dv] of positions first_position .. next_position - 1.

    One cache serves one layer. Keys go in as the encoding prepared them (RoPE: rotated), once, and stay as they are.
    Rows that an encoding computes from its parameters and an offset (Transformer-XL's projected sinusoids) are kept as
    well, while no gradient is recorded, so change no parameter during a cache's life.

    max_length: None grows without end. With it the cache rolls: a query sees the max_length newest positions up to its
        own, and whatever the sizes of the chunks, attention equals a full pass under window=(max_length - 1, 0). It
        holds the max_length - 1 positions before the newest chunk, and that chunk.
    """

    def __init__(self, max_length: int | None = None) -> None:
        if max_length is not None:
            check_size("max_length", max_length)
        self.max_length = max_length
        self.next_position = 0
        """The position that the next appended key will have: the number of keys ever appended, less those truncated."""
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        # Weak, and left behind by copies, which may serve another layer.
        self._rows: WeakKeyDictionary[object, tuple[int, Tensor]] = WeakKeyDictionary()
        self._layer: ref[object] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_rows", "_layer")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _rows=WeakKeyDictionary(), _layer=None)

    @property
    def length(self) -> int:
        """How many positions it holds."""
        return 0 if self._keys is None else self._keys.shape[2]

    @property
    def first_position(self) -> int:
        """The position of the first key that it holds: 0 until it rolls."""
        return self.next_position - self.length

    def append(
        self, key: Float[Tensor, "B Hk n D"], value: Float[Tensor, "B Hk n Dv"]
    ) -> tuple[Float[Tensor, "B Hk L D"], Float[Tensor, "B Hk L Dv"]]:
        """Add n prepared keys and their values; returns all that the n new queries may see, from first_position on.

        Raises ShapeError when key and value differ in batch, heads or length, or from what the cache holds.
        """
        self._check(key, value)
        self.next_position += key.shape[2]
        if self._keys is not None and self._values is not None:
            kept = self.length if self.max_length is None else min(self.length, self.max_length - 1)
            start = self.length - kept
            key = torch.cat([self._keys[:, :, start:], key], dim=2)
            value = torch.cat([self._values[:, :, start:], value], dim=2)
        self._keys, self._values = key, value
        return key, value

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on, so that next_position is `length` (speculative decoding's way back).

        Raises ValueError when `length` is negative, lies ahead, or so far back that the next query's keys are gone.
        """
        check_size("length", length, least=0)
        least = self.first_position
        if least > 0 and self.max_length is not None:  # it has rolled: a later query needs its whole window
            least = min(least + self.max_length - 1, self.next_position)
        if not least <= length <= self.next_position:
            held = f"positions {self.first_position}..{self.next_position - 1}" if self.length else "no positions"
            rolling = "" if self.max_length is None else f" and rolls with max_length={self.max_length}"
            raise ValueError(
                f"length: got {length}; the cache holds {held}{rolling}, so it can be cut to "
                f"{least}..{self.next_position}"
            )
        if self._keys is not None and self._values is not None:
            held = length - self.first_position
            self._keys, self._values = self._keys[:, :, :held], self._values[:, :, :held]
        self.next_position = length

    def reorder(self, index: Int[Tensor, "B2"]) -> None:
        """Row b of the batch becomes what row index[b] was (beam search); the batch may grow or shrink.

        Raises TypeError for an index that is no 1-d integer tensor, ValueError for one that names a row out of range.
        """
        if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype not in INTEGER_DTYPES:
            came = f"{index.dtype} {shape(index)}" if isinstance(index, Tensor) else type(index).__name__
            raise TypeError(f"index: got {came}; expected a 1-d integer tensor of batch rows")
        if self._keys is None or self._values is None:
            return
        batch = self._keys.shape[0]
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
            raise ValueError(
                f"index: got rows {int(index.min())}..{int(index.max())}; the cache has rows 0..{batch - 1}"
            )
        index = index.to(self._keys.device, torch.int64)
        self._keys, self._values = self._keys.index_select(0, index), self._values.index_select(0, index)

    def rows(self, owner: object, span: Span, compute: Callable[[Span], Tensor]) -> Float[Tensor, "H count D"]:
        """The rows of `span` that `owner` computes, of which only those not computed before are.

        With gradients on, or a start that is a tensor, nothing is kept.
        """
        if torch.is_grad_enabled() or isinstance(span.first, Tensor):
            return compute(span)
        end = span.first + span.count
        first, rows = self._rows.get(owner, (span.first, None))
        if rows is None or span.first > first + rows.shape[1] or end < first:
            first, rows = span.first, compute(span)
        if span.first < first:
            rows = torch.cat([compute(Span(span.first, first - span.first)), rows], dim=1)
            first = span.first
        held = first + rows.shape[1]
        if end > held:
            rows = torch.cat([rows, compute(Span(held, end - held))], dim=1)
        self._rows[owner] = first, rows
        return rows[:, span.first - first : end - first]

    @contextmanager
    def serving(self, layer: object) -> Iterator[None]:
        """Inside, `layer` appends and attends; an error puts the cache back as it was.

        Raises ValueError when another layer was served before: its keys are in here.
        """
        if self._layer is not None and self._layer() is not layer:
            raise ValueError("cache: already serves another layer; make one KVCache for each layer")
        before = self._keys, self._values, self.next_position, self._layer
        self._layer = ref(layer)
        try:
            yield
        except BaseException:
            self._keys, self._values, self.next_position, self._layer = before
            raise

    def _check(self, key: Tensor, value: Tensor) -> None:
        for name, tensor in (("key", key), ("value", value)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: got {type(tensor).__name__}; expected a tensor [batch, heads, length, width]")
            if tensor.dim() != 4:
                raise ShapeError(f"{name}: got shape {shape(tensor)}; expected four axes [batch, heads, length, width]")
            check_float(name, tensor)
        if key.shape[:3] != value.shape[:3]:
            raise ShapeError(
                f"value: got shape {shape(value)} beside key {shape(key)}; expected the same batch, heads and length"
            )
        if value.dtype != key.dtype or value.device != key.device:
            raise TypeError(
                f"value: got {value.dtype} on {value.device} beside key {key.dtype} on {key.device}; expected one "
                "dtype and device; convert with .to()"
            )
        for name, new, held in (("key", key, self._keys), ("value", value, self._values)):
            if held is None:
                continue
            if (new.shape[0], new.shape[1], new.shape[3]) != (held.shape[0], held.shape[1], held.shape[3]):
                raise ShapeError(
                    f"{name}: got shape {shape(new)}; the cache holds {shape(held)}; batch, heads and width must "
                    "agree, or start a new cache"
                )
            if new.dtype != held.dtype or new.device != held.device:
                raise TypeError(
                    f"{name}: got {new.dtype} on {new.device}; the cache holds {held.dtype} on {held.device}; convert "
                    "with .to(), or start a new cache"
                )
