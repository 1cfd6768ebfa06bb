"""Padding of every kind: what hides a key from every query, and every key from a query; and poison to put there."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests import seeds
from tests.contract.cases import EncodingCase, TermsCase
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject
from tests.oracle.pairs import allowed_pairs, make_pairs

POISON = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "1e38": 1e38}

BATCH, QUERIES, KEYS = 2, 5, 6
OF_KEYS = np.array([[True, True, False, True, True, False], [False, False, True, True, True, True]])
SEGMENTS = (np.array([[1, 1, 9, 0, 0], [-3, 0, 0, 1, 1]]), np.array([[0, 0, 7, 1, 1, -5], [8, 0, 0, 1, 1, 1]]))
EXPLICIT = np.array([[4, 2, 3, 1, 0], [0, 1, 2, 3, 4]]), np.array([[9, 3, 1, 2, 8, 4], [2, 3, 30, 4, 40, 5]])


def _columns(heads: int, kind: str) -> np.ndarray:
    """A mask of pairs that leaves some keys to no query, others under every other head; and to some query no key."""
    allowed = np.ones((BATCH, heads, QUERIES, KEYS), dtype=bool)
    allowed[0, :, :, 1:3] = False
    allowed[1, :, :, 5] = False
    allowed[:, ::2, :, 0] = False
    allowed[:, :, 3] = False
    allowed[0, 0, 1] = False
    return allowed if kind == "bool" else np.where(allowed, np.linspace(-1, 1, KEYS), -np.inf)


WAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "key_mask": lambda heads: {"key_mask": OF_KEYS},
    "key_mask, all of one element": lambda heads: {"key_mask": OF_KEYS & np.array([[True], [False]])},
    "segments": lambda heads: {"segment_ids": SEGMENTS},
    "causality": lambda heads: {"is_causal": True, "key_position": 2},
    "window": lambda heads: {"window": (2, 1), "query_position": 4},
    "window, behind": lambda heads: {"window": (None, 0), "query_position": -2},
    "out of reach": lambda heads: {"window": (3, 2), "query_position": 1000},
    "left padding and causality": lambda heads: {"is_causal": True, "key_mask": OF_KEYS[1:].repeat(2, 0)},
    "together": lambda heads: {
        "is_causal": True, "window": (3, None), "segment_ids": SEGMENTS, "key_mask": OF_KEYS, "query_position": 1,
    },
    "attn_mask": lambda heads: {"attn_mask": _columns(heads, "bool")},
    "attn_mask, one for all heads": lambda heads: {"attn_mask": _columns(heads, "bool")[:1, 1:2]},
    "attn_mask of the keys": lambda heads: {"attn_mask": OF_KEYS[:, None, None], "is_causal": True, "key_position": 2},
    "attn_mask and together": lambda heads: {
        "attn_mask": _columns(heads, "bool"), "window": (3, 0), "segment_ids": SEGMENTS, "key_mask": OF_KEYS,
    },
    "attn_mask, float": lambda heads: {"attn_mask": _columns(heads, "float")},
    "causality, starts as tensors": lambda heads: {
        "is_causal": True, "query_position": np.array(3), "key_position": np.array(5),
    },
    "causality, explicit": lambda heads: {
        "is_causal": True, "query_position": EXPLICIT[0], "key_position": EXPLICIT[1],
    },
    "window, one side explicit": lambda heads: {"window": (1, 1), "query_position": EXPLICIT[0][0], "key_position": 2},
    "together, explicit": lambda heads: {
        "is_causal": True, "window": (2, None), "segment_ids": SEGMENTS, "key_mask": OF_KEYS,
        "query_position": EXPLICIT[0], "key_position": EXPLICIT[1],
    },
}  # fmt: skip
"""The masks and positions of a call, by what they hide with."""


def padded_setting(case: EncodingCase | TermsCase, way: str, seed: int) -> Setting:
    """Five queries and six keys, grouped heads, hidden in this `way`."""
    needs = case.requirements()
    heads = needs.get("num_heads") or 4
    hiding = WAYS[way](heads)
    if needs.get("is_causal"):
        hiding["is_causal"] = True
    groups = 2 if heads % 2 == 0 else 3
    return Setting(BATCH, heads, heads // groups, QUERIES, KEYS, 4, 4, seed=seed, **hiding)


def padding_of(setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """True for keys [B, Hk, Lk] that no query sees, and for queries [B, Hq, Lq] that see no key; some of both."""
    s = setting
    pairs = make_pairs(s.query_length, s.key_length, s.query_position, s.key_position, s.is_causal, s.window)
    allowed = allowed_pairs(pairs, s.key_mask, s.segment_ids, s.attn_mask)
    allowed = np.broadcast_to(allowed, (s.batch, s.num_heads, s.query_length, s.key_length))
    by_key_head = allowed.reshape(s.batch, s.num_kv_heads, -1, s.key_length)
    return ~by_key_head.any(axis=2), ~allowed.any(axis=3)


def padded_subject(case: EncodingCase | TermsCase, setting: Setting, poison: float, dtype: str = "float32") -> Subject:
    """A call whose padding holds `poison`; the same numbers everywhere else."""
    subject = make_subject(case, setting, dtype)
    keys, queries = (torch.from_numpy(padding) for padding in padding_of(setting))
    arrays = dict(subject.arrays)
    for name, array in arrays.items():
        side = name.removeprefix("terms.")
        if side in ("query", "key", "value", "relative_query"):
            padding = keys if side in ("key", "value") else queries
            arrays[name] = array.detach().masked_fill(padding.unsqueeze(-1), poison).requires_grad_()
    return replace(subject, arrays=arrays)


def answers(subject: Subject, backend: str) -> dict[str, torch.Tensor]:
    """Output, lse, and the gradient by every array of a sum of both that weighs every number differently.

    Where gradients are off: output and lse.
    """
    output, lse = subject.run(backend)
    if not torch.is_grad_enabled():
        return {"output": output, "lse": lse}
    generator = seeds.torch_generator("weights of the answers")
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in (output, lse)]
    arrays = {name: array for name, array in subject.arrays.items() if array.requires_grad}
    gradients = torch.autograd.grad(
        (output, lse), list(arrays.values()), weights, materialize_grads=True, allow_unused=True
    )
    return {"output": output, "lse": lse} | {f"d {n}": g for n, g in zip(arrays, gradients, strict=True)}


def assert_padding_does_not_matter(
    case: EncodingCase | TermsCase, way: str, backend: str, poisons: Iterable[str], seed: int, device: str = "cpu"
) -> None:
    """Each of these poisons gives the bits that zeros give, and no gradient where it is, if gradients are on."""
    setting = padded_setting(case, way, seed)
    padding = padding_of(setting)
    assert padding[0].any(), "no key is hidden from all queries"
    plain = answers(padded_subject(case, setting, 0.0).on(device), backend)
    assert all(answer.isfinite().all() or name == "lse" for name, answer in plain.items())
    for name in poisons:
        found = answers(padded_subject(case, setting, POISON[name]).on(device), backend)
        for what, answer in found.items():
            assert torch.equal(answer, plain[what]), f"{what} with {name} in the padding"
        for what, hidden in (("key", padding[0]), ("value", padding[0]), ("query", padding[1])):
            if f"d {what}" in found:
                at_padding = found[f"d {what}"].cpu()[torch.from_numpy(hidden)]
                assert not at_padding.any(), f"a gradient at the padding of {what}"


def assert_gradients_of_dead_rows_do_not_matter(
    case: EncodingCase | TermsCase, way: str, backend: str, device: str = "cpu"
) -> None:
    """What comes in as the gradient of an answer of a query that sees nothing: NaN gives the bits that zero gives."""
    setting = padded_setting(case, way, 0)
    subject = make_subject(case, setting, "float32").on(device)
    dead = torch.from_numpy(padding_of(setting)[1]).to(device)
    assert dead.any(), "every query sees a key"
    answers = subject.run(backend)
    arrays = [array for array in subject.arrays.values() if array.requires_grad]

    def gradients(incoming: float) -> tuple[torch.Tensor, ...]:
        output, lse = answers
        weights = torch.ones_like(output).masked_fill(dead.unsqueeze(-1), incoming), torch.ones_like(lse)
        weights[1].masked_fill_(dead, incoming)
        return torch.autograd.grad(
            answers, arrays, weights, retain_graph=True, materialize_grads=True, allow_unused=True
        )

    for found, plain in zip(gradients(torch.nan), gradients(0.0), strict=True):
        assert plain.isfinite().all()
        assert torch.equal(found, plain)
