"""Each size that a kernel is given for sm_80, timed or not, is one in which a case of `test_emulated` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch

from relattn.backends.triton.host.call import Call
from tests.triton.calls import launching
from tests.triton.test_kernels import TABLES, make_call, random_cotangents, run

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytestmark = pytest.mark.ptx

NUMBERS = [(torch.bfloat16, "ieee"), (torch.float32, "ieee"), (torch.float32, "tf32x3")]
BESIDE = [(), TABLES[:1], TABLES[3:], (TABLES[0], TABLES[2]), TABLES]
ALWAYS = ("forward_kernel", "queries_kernel", "keys_kernel")


class Compiled(NamedTuple):
    """A kernel, its tile, warps, stages and tiles of queries, whether for float32, and the precision of products."""

    kernel: str
    sizes: tuple[int, ...]
    in_float32: bool
    precision: str


def test_every_size_that_may_be_taken_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set(_taken())
    assert Compiled("queries_kernel", (32, 4, 2, 4), False, "ieee") in taken, "second sizes, too"
    assert taken <= _run_by_cases(monkeypatch)


def _taken() -> Iterator[Compiled]:
    """By calls of each kind that `tile_configs` tells from others."""
    from relattn.backends.triton.host.tile_configs import AMPERE, tile_configs

    for (dtype, precision), width, tables, dropout_p, axes, added in product(
        NUMBERS, (64, 128, 256), BESIDE, (0.0, 0.3), ((), ({"number": 1},)), (None, "hqk")
    ):
        if precision == "tf32x3" and width > 64:  # parts are not asked for there
            continue
        call = make_call(
            dtype, lengths=(2, 3), widths=(width, width, width), tables=tables, dropout_p=dropout_p, seed=1,
            precision=precision, axes=axes, added=added,
        )  # fmt: skip
        owned = [name for name, has in (("mask", added), ("tables", tables), ("rows", axes)) if has]
        # Those alone, of which it consists, run where a gradient is not wanted; a mask is summed in every order.
        of_owned = ["several", *(["mask"] if added else [])] if len(owned) > 1 else owned
        for kernel in (*ALWAYS, *(f"{name}_kernel" for name in of_owned)):
            for sizes in tile_configs(kernel, call, AMPERE):
                yield _compiled(kernel, tuple(sizes), call)


def _run_by_cases(monkeypatch: pytest.MonkeyPatch) -> set[Compiled]:
    """What they would launch: nothing runs here."""
    from relattn.backends.triton.host.tile_configs import TileConfig
    from relattn.backends.triton.kernels import backward, decoding
    from tests.triton.ptx.test_emulated import EVERY_TIME, NOW_AND_THEN

    found: set[Compiled] = set()
    monkeypatch.setattr(decoding, "_launch", lambda *given: None)
    for dtype, sizes, given in (EVERY_TIME | NOW_AND_THEN).values():

        def noted(kernel: Any, call: Call, *others: Any, sizes: tuple[int, ...] = sizes, **more: Any) -> None:
            found.add(_compiled(kernel.__name__, tuple(TileConfig(*sizes)), call))

        for module in launching():
            monkeypatch.setattr(module, "launch", noted)
        call = make_call(dtype, **given)
        for ordered in (False, True):
            monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted, ordered=ordered: ordered)
            run(call, *random_cotangents(call))
    return found


def _compiled(kernel: str, sizes: tuple[int, ...], call: Call) -> Compiled:
    from relattn.backends.triton.host.tile_configs import ALONG_KEYS

    owned = sizes[3] if kernel in ALONG_KEYS else 1
    return Compiled(kernel, (*sizes[:3], owned), call.query.dtype == torch.float32, call.precision)
