"""One call made concrete: its tensors, the encoding under test, and the oracle on the same numbers."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relattn import OffsetTable, RelativeEncoding, ScoreTerms, attention_and_lse, relative_attention
from tests import oracle, seeds
from tests.contract.cases import EncodingCase, HandTable, Part, TermsCase
from tests.contract.settings import Setting

INPUTS = ("query", "key", "value")
AXISLESS = ("key_bias", "sinks")


@dataclass
class Subject:
    """What the suite compares: one call of `relative_attention`.

    arrays: every float tensor that the answer depends on, by name, leaves that require gradients: the inputs, a float
    attn_mask (all four axes), key_bias and sinks, and parameters ("0.relative_keys" belongs to part 0) or the
    tensors of hand-made terms.
    device: where they lie, and where the rest of the call's tensors are put.
    """

    setting: Setting
    arrays: dict[str, Tensor]
    parts: list[Part] = field(default_factory=list)
    hand_tables: dict[str, HandTable] = field(default_factory=dict)
    device: str = "cpu"

    def on(self, device: str) -> "Subject":
        """The same call with tensors of its own on another device."""
        moved = copy.deepcopy(self)
        for part in moved.parts:
            part.module.to(device)
        arrays = {
            name: array if isinstance(array, nn.Parameter) else array.detach().to(device).requires_grad_()
            for name, array in moved.arrays.items()
        }
        return replace(moved, arrays=arrays, device=device)

    def encoding(self) -> RelativeEncoding | ScoreTerms | None:
        """What is passed as encoding."""
        if self.hand_tables:
            tables = {name: OffsetTable(self.arrays[name], t.first, t.beyond) for name, t in self.hand_tables.items()}
            others = {name: self.arrays.get(f"terms.{name}") for name in ("query", "key", "relative_query")}
            return ScoreTerms(**others, **tables)
        return reduce(add, [part.module for part in self.parts]) if self.parts else None

    def arguments(self) -> dict[str, Any]:
        """Every argument of `relative_attention` but backend and dropout_p."""
        keywords = on_device(self.setting.torch_keywords(), self.device)
        if self.setting.has_float_mask:
            keywords["attn_mask"] = self.setting.shaped_mask(self.arrays["attn_mask"])
        keywords |= {name: self.arrays[name] for name in AXISLESS if name in self.arrays}
        return {**{name: self.arrays[name] for name in INPUTS}, **keywords, "encoding": self.encoding()}

    def run(self, backend: str, return_lse: bool = True) -> Any:
        """relative_attention of it, or attention_and_lse."""
        if self.setting.dropout_p:
            seeds.start_torch(self.setting.seed)
        attend = attention_and_lse if return_lse else relative_attention
        return attend(**self.arguments(), backend=backend)

    def numbers(self) -> dict[str, np.ndarray]:
        """The arrays in float64."""
        return {name: array.detach().double().cpu().numpy() for name, array in self.arrays.items()}

    def oracle(self, numbers: Mapping[str, np.ndarray]) -> oracle.Answer:
        """The oracle's answer for these numbers (`gradient` perturbs them)."""
        keywords = self.setting.oracle_keywords()
        if "attn_mask" in numbers:
            keywords["attn_mask"] = numbers["attn_mask"]
        keywords |= {name: numbers[name] for name in AXISLESS if name in numbers}
        inputs = tuple(numbers[name] for name in INPUTS)
        if self.hand_tables:
            tables = {n: oracle.Table(numbers[n], t.first, t.beyond) for n, t in self.hand_tables.items()}
            others = {name: numbers.get(f"terms.{name}") for name in ("query", "key", "relative_query")}
            return oracle.raw_terms(inputs, oracle.Terms(**others, **tables), **keywords)
        parts = [(p.oracle, parameters_of(i, numbers), p.settings) for i, p in enumerate(self.parts)]
        return oracle.sum_of_encodings(inputs, parts or [("none", {}, {})], **keywords)


def on_device(keywords: Any, device: str) -> Any:
    """Every tensor of a call's keywords, segments come as pairs, on a device."""
    return torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), keywords)


def parameters_of(index: int, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that belong to part `index`, under their own names."""
    prefix = f"{index}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def make_subject(
    case: EncodingCase | TermsCase, setting: Setting, dtype: str = "float64", parameter_dtype: str | None = None
) -> Subject:
    """Random tensors for a case in a setting. parameter_dtype: of encoding and float mask, the inputs' unless given."""
    rng = seeds.generator(setting.seed)
    kinds = {"inputs": getattr(torch, dtype), "encoding": getattr(torch, parameter_dtype or dtype)}
    parts = case.parts(setting) if isinstance(case, EncodingCase) else []
    arrays: dict[str, Tensor] = {}

    def normal(*shape: int, kind: str = "inputs") -> Tensor:
        return torch.from_numpy(rng.normal(size=shape)).to(kinds[kind]).requires_grad_()

    parameters = {}
    for i, part in enumerate(parts):
        part.module.to(kinds["encoding"])
        for name, parameter in part.module.named_parameters():
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(part.draw(rng.normal(size=parameter.shape))))
            parameters[f"{i}.{name}"] = parameter
    as_wide = any(name.endswith("relative_values") for name in parameters)  # relative values are as wide as the keys
    s = setting
    value_dim = s.head_dim if as_wide else s.value_dim
    arrays["query"] = normal(s.batch, s.num_heads, s.query_length, s.head_dim)
    arrays["key"] = normal(s.batch, s.num_kv_heads, s.key_length, s.head_dim)
    arrays["value"] = normal(s.batch, s.num_kv_heads, s.key_length, value_dim)
    if s.has_float_mask:
        assert s.attn_mask is not None
        arrays["attn_mask"] = torch.from_numpy(s.attn_mask).to(kinds["encoding"]).requires_grad_()
    if isinstance(case, EncodingCase):
        return Subject(setting, {**arrays, **parameters, **axisless(s, normal)}, parts)

    if case.rewrites:
        arrays["terms.query"] = normal(*arrays["query"].shape)
        arrays["terms.key"] = normal(*arrays["key"].shape)
    if case.relative_width is not None:
        arrays["terms.relative_query"] = normal(s.batch, s.num_heads, s.query_length, case.relative_width)
    reach = s.reach()
    tables = {}
    for name, table in case.tables.items():
        if table.rows is None:
            table = table._replace(first=1 - reach, rows=2 * reach - 1)
        tables[name] = table
        widths = {"relative_keys": (case.relative_width or s.head_dim,), "relative_queries": (s.head_dim,)}
        widths |= {"relative_values": (s.value_dim,), "bias": ()}
        arrays[name] = normal(1 if table.shared else s.num_heads, table.rows, *widths[name], kind="encoding")
    return Subject(setting, {**arrays, **axisless(s, normal)}, hand_tables=tables)


def axisless(s: Setting, normal: Callable[..., Tensor]) -> dict[str, Tensor]:
    """The key bias and the sinks of a setting."""
    arrays = {}
    if s.key_bias is not None:
        arrays["key_bias"] = normal(*s.key_bias, s.key_length, kind="encoding")
    if s.sinks is not None:
        size = (s.num_heads,) if s.sinks == "per head" else (s.batch, s.num_heads, s.query_length)
        arrays["sinks"] = normal(*size, kind="encoding")
    return arrays
