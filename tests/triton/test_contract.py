"""Every encoding on the kernels: outputs, lse and every gradient within the budget; on a GPU the other backends too."""

import numpy as np
import pytest

from tests.contract.cases import CASES, DIFFERENT
from tests.contract.check import by_formula, by_oracle, check
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import make_subject
from tests.triton import GPU, INTERPRETED, everywhere

pytest_plugins = ["tests.contract.fresh"]

HALVES = ("bfloat16", "float16")
ACROSS_TILES = {"cpu": 24, "cuda": 300}
"""The longest sequence: two of the interpreter's tiles of 16, and a few of a GPU's."""
every_case = pytest.mark.parametrize("name", CASES)
different_cases = pytest.mark.parametrize(
    ("name", "device"),
    [pytest.param(name, *INTERPRETED.values, marks=INTERPRETED.marks) for name in DIFFERENT]
    + [pytest.param(name, *GPU.values, marks=GPU.marks) for name in CASES],
)


@pytest.fixture
def in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few queries there are, they are computed in tiles."""
    from relattn.backends.triton.kernels import forward

    monkeypatch.setattr(forward, "MAX_QUERIES", 0)


def hold_short_sequences_to_the_oracle(name: str, device: str, rng: np.random.Generator) -> None:
    setting = random_setting(rng, **CASES[name].requirements(), kind="diagonal")
    subject, return_lse = make_subject(CASES[name], setting, "float32"), bool(rng.integers(3))
    check(subject, "triton", "float32", return_lse=return_lse, device=device)


@everywhere
@every_case
def test_short_sequences_are_the_oracles(name: str, device: str, rng, in_tiles) -> None:
    """Within one tile, whose rest lies outside of the sequence."""
    hold_short_sequences_to_the_oracle(name, device, rng)


@different_cases
def test_few_queries_are_the_oracles(name: str, device: str, rng) -> None:
    """A row a program; see also tests/triton/test_decoding.py."""
    hold_short_sequences_to_the_oracle(name, device, rng)


@different_cases
def test_sequences_across_tiles(name: str, device: str, rng, in_tiles) -> None:
    setting = random_setting(rng, **CASES[name].requirements(), kind="diagonal", longest=ACROSS_TILES[device])
    check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


@different_cases
def test_half_precision(name: str, device: str, rng, in_tiles) -> None:
    """The inputs alone, beside float32 parameters, or all of them."""
    dtype, parameters = rng.choice(HALVES), rng.choice(("same", "float32"))
    setting = random_setting(rng, **CASES[name].requirements(), kind="diagonal", longest=ACROSS_TILES[device] // 2)
    subject = make_subject(CASES[name], setting, dtype, None if parameters == "same" else parameters)
    check(subject, "triton", dtype, truth=by_formula, device=device)


@different_cases
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_caps_key_biases_and_sinks(dtype: str, name: str, device: str, rng, in_tiles) -> None:
    more = {"kind": "capped diagonal", "longest": ACROSS_TILES[device] // 2}
    setting = random_setting(rng, **CASES[name].requirements(), **more)
    check(make_subject(CASES[name], setting, dtype), "triton", dtype, truth=by_formula, device=device)


@everywhere
@pytest.mark.parametrize("name", ["none", "terms_all"])
def test_caps_key_biases_and_sinks_for_few_queries(name: str, device: str, rng) -> None:
    for _ in range(4):
        setting = random_setting(rng, **CASES[name].requirements(), kind="capped diagonal")
        check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_oracle, device=device)


WIDE = ((16, 16), (32, 24), (80, 64), (128, 128), (256, 256))


@everywhere
@pytest.mark.parametrize("widths", WIDE, ids=str)
def test_widths(widths: tuple[int, int], device: str, rng) -> None:
    """Powers of two and between them, as wide as the kernels take; the relative query has a width of its own."""
    setting = Setting(1, 2, 1, 19, 23, *widths, is_causal=True, key_position=-3, seed=int(rng.integers(2**32)))
    for name in ("relative", "terms_all"):
        check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


@everywhere
@pytest.mark.parametrize("window", [(5, 0), (40, 3), (0, 0)], ids=str)
@pytest.mark.parametrize("name", ["relative_per_head", "shaw_asymmetric", "terms_all"])
def test_windows_that_leave_tiles_out(name: str, window: tuple[int, int], device: str, rng) -> None:
    setting = Setting(1, 2, 2, 50, 41, 4, 3, window=window, key_position=2, seed=int(rng.integers(2**32)))
    check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("backend", ["dense", "blocks"])
@every_case
def test_the_other_backends_on_a_gpu(name: str, backend: str, device: str, rng) -> None:
    """In each of their dtypes, over every kind of setting."""
    for dtype in ("float64", "float32", *HALVES):
        setting = random_setting(rng, **CASES[name].requirements())
        check(make_subject(CASES[name], setting, dtype), backend, dtype, truth=by_oracle, device=device)
