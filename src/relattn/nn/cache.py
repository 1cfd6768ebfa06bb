"""KVCache: the keys and values that attention has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import ref

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from relattn.checks.positions import position_of, positions_beside, sequence_and_others, side_of
from relattn.checks.values import check_size
from relattn.nn.cache_checks import (
    check_beside,
    check_copied,
    check_encoding,
    check_explicit,
    check_index,
    check_keys_and_values,
    check_not_behind,
)
from relattn.nn.growing import Growing
from relattn.nn.kept_places import KeptPlaces
from relattn.nn.kept_rows import KeptRows
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.position import Position, PositionsLike
from relattn.positions.positions import SEQUENCE

KEY_AXIS, POSITION_AXIS = 2, 1
LEFT_BEHIND = ("kept_rows", "_layer", "_encoding")


class KVCache:
    """Prepared keys [B, Hk, L, D] and values [B, Hk, L, Dv] of the slots first_position .. next_position - 1.

    A key's slot counts the keys that were appended before it, padding included. Its position is where it stands in its
    own sequence. Offsets, causality and window compare positions. Slot and position are the same number, unless a call
    gives positions (`query_position` for the new tokens of a batch padded on the right, `key_position` for a memory).
    Then one position is kept per key, and lengths, masks, `truncate` and `forget` still count slots.

    If calls give positions on other axes, these are kept with every key as well, and every chunk must give them.

    One cache serves one layer. Keys go in once, as the encoding prepared them (RoPE: rotated), and stay as they are.
    While no gradient is recorded a step copies nothing of the held keys and values. Rows that an encoding computes from
    its parameters and an offset (Transformer-XL's projected sinusoids) are kept as well. So do not change a parameter
    while a cache is in use.

    Copies, shallow, deep or pickled, hold the same keys independently of this cache. They may serve another layer if
    its encoding prints the same. A copy is a ValueError where a graph holds the keys: `detach` first.
    """

    def __init__(self, max_length: int | None = None) -> None:
        """A cache without keys.

        max_length: None grows without end. With max_length=n the cache rolls: in a layer each query sees at most n
            positions, itself included. For all sizes of chunks attention equals a full pass with is_causal=True,
            window=(n - 1, 0). Without a layer, pass these two yourself. The cache holds the keys that the newest chunk
            saw.
        """
        self.max_length = None if max_length is None else check_size("max_length", max_length)
        self.next_position = 0
        """The slot of the next appended key: the number of all appended keys, minus the truncated ones."""
        self.is_full = False
        """Whether it holds a memory (`fill`) and takes no more keys."""
        # Every attribute except the rows is replaced by a new value, never changed in place (`serving` relies on it).
        self._keys: Growing | None = None
        self._values: Growing | None = None
        self._start = ContiguousPositions(0)  # where slot 0 stands, while positions follow one another
        self._positions: Growing | None = None  # [B, L], where calls gave them
        self._beside = KeptPlaces()  # where keys stand on other axes, where calls gave those
        self._rolled = 0  # the number of slots that it has dropped because it rolls
        self._complete_from: Int64[Tensor, "B"] | None = None  # given positions: earlier queries miss dropped keys
        self._prepared_for: str | None = None  # the encoding that prepared the keys, as it prints
        # Copies do not take these, because they may serve another layer.
        self.kept_rows = KeptRows()
        """Where encodings keep rows between calls."""
        self._layer: ref[object] | None = None
        self._encoding: ref[object] | None = None

    def __getstate__(self) -> dict[str, object]:
        check_copied(self.keys, self.values)
        state = {name: value for name, value in vars(self).items() if name not in LEFT_BEHIND}
        return {
            name: value.compact() if isinstance(value, (Growing, KeptPlaces)) else value
            for name, value in state.items()
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, kept_rows=KeptRows(), _layer=None, _encoding=None)

    @property
    def length(self) -> int:
        """The number of keys that it holds."""
        return 0 if self._keys is None else self._keys.stop - self._keys.start

    @property
    def first_position(self) -> int:
        """The slot of the first key that it holds: 0 until it rolls or forgets."""
        return self.next_position - self.length

    @property
    def keys(self) -> Float[Tensor, "B Hk L D"] | None:
        """The prepared keys that it holds, as `append` returns them; None before the first."""
        return None if self._keys is None else self._keys.held

    @property
    def values(self) -> Float[Tensor, "B Hk L Dv"] | None:
        """The values that it holds, as `append` returns them; None before the first."""
        return None if self._values is None else self._values.held

    @property
    def key_position(self) -> PositionsLike:
        """Where the keys that it holds stand, as `relative_attention` takes it."""
        sequence = self.position
        plain = sequence.positions if isinstance(sequence, ExplicitPositions) else sequence.start
        return {SEQUENCE: plain, **self.beside} if self.beside else plain

    @property
    def beside(self) -> dict[str, Position]:
        """Where the keys that it holds stand on other axes, by name."""
        return self._beside.positions() if self._beside.by_axis else {}

    @property
    def position(self) -> ContiguousPositions | ExplicitPositions:
        """Where the keys that it holds stand on the sequence."""
        if self._positions is not None:
            return ExplicitPositions(self._positions.held)
        held = 0 if self._keys is None else self._keys.stop - self._keys.start
        return ContiguousPositions(self._start.start + self.next_position - held)

    def append(
        self,
        key: Float[Tensor, "B Hk n D"],
        value: Float[Tensor, "B Hk n Dv"],
        position: PositionsLike | None = None,
    ) -> tuple[Float[Tensor, "B Hk L D"], Float[Tensor, "B Hk L Dv"]]:
        """Add n prepared keys and their values; returns all keys and values that the n new queries may see, from
        first_position on.

        position: the position of each new key, [n] or [B, n]; None: one after the other from next_position on. A
            mapping gives positions on several axes by name; "sequence" may be left out.

        The cache keeps copies. Where gradients are recorded it holds the first part itself, so do not change that
        tensor. It returns views, which are valid until the cache is truncated and appended to again.

        Raises ShapeError: when key and value differ in batch, heads or length, or from what the cache holds;
        ValueError: when the cache is full, where positions are missing after others were given, and where positions go
        back behind keys that a rolling cache has dropped.
        """
        check_keys_and_values(key, value)
        if self.is_full:
            raise ValueError(
                f"cache: got a full one, with a memory of {self.length} keys; expected one that takes more; attend to "
                "it, or append to a new KVCache()"
            )
        placed = self.place("position", position, key.shape[0], key.shape[KEY_AXIS], key.device)
        return self.hold(key, value, *placed)

    def hold(
        self,
        key: Float[Tensor, "B Hk n D"],
        value: Float[Tensor, "B Hk n Dv"],
        position: ContiguousPositions | ExplicitPositions,
        beside: Mapping[str, Position],
    ) -> tuple[Float[Tensor, "B Hk L D"], Float[Tensor, "B Hk L Dv"]]:
        """`append`, for keys and values that fit one another, at positions that `place` returned."""
        check_beside(key, value, self._keys, self._values)
        # First the part that may be refused; it rolls with the keys below.
        grown = KeptPlaces(length=self._beside.length + key.shape[KEY_AXIS])
        if beside or self._beside.by_axis:
            grown = self._beside.append("query_position", beside, key.shape[KEY_AXIS], key.shape[0], key.device)
        if isinstance(position, ExplicitPositions):
            self._list_positions(key.shape[0], key.device)
        if self.max_length is not None and (dropped := self._roll(position)):
            grown = grown.part(dropped, grown.length)
        self._beside = grown
        if isinstance(position, ExplicitPositions):
            given, held = position.positions, self._positions
            self._positions = _first(given, POSITION_AXIS) if held is None else held.append(given)
        self._keys = keys = _first(key, KEY_AXIS) if self._keys is None else self._keys.append(key)
        self._values = values = _first(value, KEY_AXIS) if self._values is None else self._values.append(value)
        self.next_position += key.shape[KEY_AXIS]
        return keys.held, values.held

    def fill(
        self, key: Float[Tensor, "B Hk L D"], value: Float[Tensor, "B Hk L Dv"], key_position: PositionsLike = 0
    ) -> None:
        """Hold the prepared keys and the values of a memory, and take no more: the cache of cross-attention.

        It holds the tensors themselves, without a copy: do not change them. key_position: as in `relative_attention`.

        Raises ValueError: when the cache rolls or was appended to before.
        """
        check_keys_and_values(key, value)
        self.keep(key, value, *side_of("key_position", key_position, key.shape[:1], key.shape[KEY_AXIS], key.device))

    def keep(
        self,
        key: Float[Tensor, "B Hk L D"],
        value: Float[Tensor, "B Hk L Dv"],
        position: ContiguousPositions | ExplicitPositions,
        beside: Mapping[str, Position],
    ) -> None:
        """`fill`, for keys and values that fit one another, at parsed positions."""
        if self.max_length is not None or self._keys is not None:
            state = f"rolls with max_length={self.max_length}" if self._keys is None else f"holds {self.length} keys"
            raise ValueError(
                f"cache: got one that {state}; expected an empty one without max_length, to hold a memory; fill a new "
                "KVCache()"
            )
        self._beside = self._beside.append("key_position", beside, key.shape[KEY_AXIS], key.shape[0], key.device)
        if isinstance(position, ExplicitPositions):
            self._positions = Growing.of(position.positions.expand(key.shape[0], -1), POSITION_AXIS)
        else:
            self._start = position
        self._keys, self._values = Growing.of(key, KEY_AXIS), Growing.of(value, KEY_AXIS)
        self.next_position, self.is_full = key.shape[KEY_AXIS], True

    def place(
        self, name: str, position: PositionsLike | None, batch: int, count: int, device: torch.device
    ) -> tuple[ContiguousPositions | ExplicitPositions, dict[str, Position]]:
        """Where the next `count` keys stand on the sequence, and on other axes by name.

        name: the name of the argument `position`, for messages.

        Raises what `append` raises for positions.
        """
        if position is None and self._positions is None:
            return ContiguousPositions(self.next_position), {}
        on_sequence, others = sequence_and_others(position, start=None)
        beside = positions_beside(name, others, (batch,), count, device) if others else {}
        return self._place(name, on_sequence, batch, count, device), beside

    def _place(
        self, name: str, position: object, batch: int, count: int, device: torch.device
    ) -> ContiguousPositions | ExplicitPositions:
        """The positions on the sequence: contiguous, or every position [B, n] once positions were given."""
        if position is None:
            if self._positions is not None:
                raise ValueError(
                    f"{name}: got None after positions were given before; expected that of every new token, [{count}] "
                    f"or [{batch}, {count}]; the cache does not guess it"
                )
            return ContiguousPositions(self.next_position)
        check_explicit(name, position, batch, count)
        place = position_of(name, position, (batch,), count, device)
        explicit = place.expand(count, device).expand(batch, count)
        complete_from = self._complete_from_of(batch, device)
        if complete_from is not None and count:
            check_not_behind(name, explicit, complete_from, f"max_length={self.max_length}")
        return ExplicitPositions(explicit)

    def truncate(self, length: int) -> None:
        """Forget all slots from `length` on, so that next_position is `length` (for speculative decoding).

        truncate(0) leaves it as new, for any layer and batch. Where calls gave positions, the next query of a row is
        assumed to stand behind the furthest position that the row keeps.

        Raises ValueError: when `length` is negative, lies ahead, or lies so far back that keys of the next query are
        gone, and for a full cache.
        """
        length = check_size("length", length, least=0)
        self._refuse_full()
        self._check_slot("length", length, self._least_length())
        if length == 0:
            vars(self).update(vars(KVCache(self.max_length)))
            return
        self._keep(0, length - self.first_position)
        self.next_position = length

    def forget(self, first_position: int) -> None:
        """Forget all slots before `first_position`, the counterpart of `truncate` at the other end.

        For a limited left context that the caller controls: chunks see themselves and the rest of the past.

        Raises ValueError: when `first_position` is negative, ahead, or already forgotten, and for a full cache.
        """
        first_position = check_size("first_position", first_position, least=0)
        self._refuse_full()
        self._check_slot("first_position", first_position, self.first_position)
        self._keep(first_position - self.first_position, self.length)

    def reorder(self, index: Int[Tensor, "B2"]) -> None:
        """Row b of the batch gets the content of row index[b] (beam search); the batch may grow or shrink.

        A cache that holds no keys yet has no rows to move, and stays as it is.

        Raises TypeError: for an index that is not a 1-d integer tensor; ValueError: for an index with a row out of
        range.
        """
        check_index(index, self.keys)
        if self._keys is None or self._values is None:
            return
        index = index.to(self._keys.room.device, torch.int64)
        self._keys, self._values = self._keys.select(index), self._values.select(index)
        if self._positions is not None:
            self._positions = self._positions.select(index)
        self._beside = self._beside.select(index)
        if self._complete_from is not None:
            self._complete_from = self._complete_from[index]

    def detach(self) -> None:
        """Stop gradients at the held keys and values: Transformer-XL's memory of earlier segments.

        Later appends are recorded as before.
        """
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys.detach(), self._values.detach()

    @contextmanager
    def serving(self, layer: object, encoding: object) -> Iterator[None]:
        """Inside, `layer` appends and attends with its `encoding`; an error puts the cache back as it was.

        Raises ValueError: when the cache served another layer before, or this one with another encoding, because it
        holds their keys.
        """
        if self._layer is not None and self._layer() is not layer:
            raise ValueError(
                "cache: got one that serves another layer; expected this layer's own; make one for each layer"
            )
        before = dict(vars(self))
        self._layer = ref(layer)
        try:
            if encoding is None or self._encoding is None or self._encoding() is not encoding:
                self._check_encoding(encoding)
            yield
        except BaseException:
            vars(self).update(before)
            raise

    def _check_encoding(self, encoding: object) -> None:
        """Another encoding, or none: it prints as the one that prepared the keys, as a copy does."""
        printed = " ".join(repr(encoding).split())
        if self.length and self._prepared_for is not None:
            check_encoding(printed, self._prepared_for)
        self._encoding, self._prepared_for = None if encoding is None else ref(encoding), printed

    def _least_length(self) -> int:
        """The smallest length to which it can be cut so that every row's next query still finds its whole window."""
        if not self._rolled or self.max_length is None:
            return self.first_position
        if self._positions is None:
            return max(self.first_position, min(self._rolled + self.max_length - 1, self.next_position))
        held = self._positions.held
        complete_from = self._complete_from_of(held.shape[0], held.device)
        assert complete_from is not None
        dropped = complete_from.unsqueeze(1) - self.max_length  # the furthest dropped position of each row
        behind = torch.cat([dropped, held], dim=1).cummax(1).values + 1 < complete_from.unsqueeze(1)
        return min(self.first_position + int(behind.any(0).sum()), self.next_position)

    def _roll(self, position: ContiguousPositions | ExplicitPositions) -> int:
        """Of a cache that rolls: drop the keys that queries from `position` on no longer see; returns how many."""
        if self._keys is None:
            return 0
        assert self.max_length is not None
        if isinstance(position, ContiguousPositions):
            dropped = max(self.length - (self.max_length - 1), 0)
        elif position.positions.shape[1] == 0 or self._positions is None:
            dropped = 0
        else:
            held = self._positions.held
            gone = (held <= position.positions.amin(1, keepdim=True) - self.max_length).all(0)
            dropped = int(gone.long().cumprod(0).sum())
            if dropped:
                complete_from = held[:, :dropped].amax(1) + self.max_length
                before = self._complete_from_of(held.shape[0], held.device)
                self._complete_from = complete_from if before is None else before.maximum(complete_from)
        if dropped:
            self._keep(dropped, self.length)
            self._rolled = self.first_position
        return dropped

    def _complete_from_of(self, batch: int, device: torch.device) -> Int64[Tensor, "B"] | None:
        """Per row, the first position whose query needs no dropped key; None where no key was dropped."""
        if self._complete_from is None and self._rolled and self.max_length is not None:
            return torch.full((batch,), self._rolled - 1 + self.max_length, device=device)
        return self._complete_from

    def _list_positions(self, batch: int, device: torch.device) -> None:
        """From now on one position is kept per key. Earlier positions followed one another."""
        if self._positions is None and self._keys is not None:
            so_far = self.position.expand(self.length, device)
            self._positions = Growing.of(so_far.expand(batch, -1), POSITION_AXIS)

    def _keep(self, start: int, stop: int) -> None:
        """Only the keys start .. stop - 1 of the held ones."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys.part(start, stop), self._values.part(start, stop)
        if self._positions is not None:
            self._positions = self._positions.part(start, stop)
        self._beside = self._beside.part(start, stop)

    def _refuse_full(self) -> None:
        if self.is_full:
            raise ValueError(
                f"cache: got a full one, which keeps its memory of {self.length} keys whole; expected one that was "
                "appended to; leave keys out with key_mask, or remember another memory"
            )

    def _check_slot(self, name: str, slot: int, least: int) -> None:
        if not least <= slot <= self.next_position:
            held = f"slots {self.first_position}..{self.next_position - 1}" if self.length else "no slots"
            rolling = "" if self.max_length is None else f" and rolls with max_length={self.max_length}"
            raise ValueError(
                f"{name}: got {slot}; expected {least}..{self.next_position}, for the cache holds {held}{rolling}"
            )


def _first(part: Tensor, axis: int) -> Growing:
    """It is copied, unless a graph may need the tensor itself."""
    first = Growing.of(part, axis)
    return first if torch.is_grad_enabled() else first.part(0, 0).append(part)
