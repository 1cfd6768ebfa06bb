"""Gemma 4: its attention runs by name; layers that share keys may be called with only the last tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel

from relattn.hf.masks import MaskStructure
from relattn.hf.whole_model import WholeModel


class LastTokens(WholeModel):
    """A Gemma 4. Before the layers that share keys it cuts its masks to the tokens whose logits are kept."""

    def _maybe_slice_kv_shared_inputs(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As the original's; its masks, by the kind of layer, may be structures."""
        rows = (_each(arg, lambda mask: _Rows(mask, hidden_states.shape[1]), MaskStructure) for arg in args)
        results = super()._maybe_slice_kv_shared_inputs(hidden_states, *rows, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        return tuple(_each(one, lambda rows: rows.structure, _Rows) for one in results)


def where_it_slices_masks(
    original: type[nn.Module], replacement: type[LastTokens]
) -> dict[type[nn.Module], type[LastTokens]]:
    """The replacement, if the original cuts its masks. transformers 5.10 to 5.22: it asks all layers of all tokens."""
    return {original: replacement} if hasattr(original, "_maybe_slice_kv_shared_inputs") else {}


def _each(masks: Any, change: Callable[[Any], Any], kind: type) -> Any:
    """A mapping with its values of one kind changed; anything else itself."""
    if not isinstance(masks, dict):
        return masks
    return {name: change(value) if isinstance(value, kind) else value for name, value in masks.items()}


@dataclass(frozen=True)
class _Rows:
    """A structure that can be indexed like its mask of pairs, [:, :, queries, :], with queries up to the end."""

    structure: MaskStructure
    length: int

    def __getitem__(self, index: tuple[slice, slice, slice, slice]) -> _Rows:
        first = index[2].indices(self.length)[0]
        return _Rows(self.structure.from_query(first), self.length - first)


class RelattnGemma4TextModel(LastTokens, Gemma4TextModel):
    """Gemma4TextModel on relattn."""


REPLACEMENTS = where_it_slices_masks(Gemma4TextModel, RelattnGemma4TextModel)
"""The module of transformers, and its replacement."""
