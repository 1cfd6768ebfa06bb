"""How far an answer may lie from the float64 oracle: derived, not tuned.

    max|actual - oracle|  <=  2 * plain_error  +  (c * eps_acc * sqrt(terms) + eps) * magnitude
    c = sqrt(ln(2 N / p)),   N elements in the tensor,   p = 1e-9 the chance that a correct answer is refused

Oracle and answer start from the same numbers: inputs already rounded to the dtype.

The first term. `plain_error` is the error of the plain PyTorch formula in the same dtype on the same inputs. It
carries the conditioning of the problem: a rounding of a score by delta moves the weights by a factor e^delta whatever
is done afterwards, and any algorithm of the same precision pays it. The factor 2 allows for another draw of the same
roundings.

The second term. One draw may happen to be small, above all in a small tensor, and exact for the plain formula's own
order of summation; the answer is then still owed the rounding of one sum of `terms` products. Model (Higham & Mary
2019, "A new approach to probabilistic rounding error analysis"; 2020, "Sharper probabilistic backward error analysis
for basic linear algebra kernels with random data"): each rounding delta_k has mean zero whatever came before it, and
|delta_k| <= u = eps / 2. Summing s_k = s_(k-1) + x_k y_k then makes the error

    E = sum_k delta_k s_k + sum_k delta'_k x_k y_k       (first order; a sum and a product for each term)

a martingale whose 2 n steps are bounded by u M, with M the largest partial sum. Azuma and Hoeffding:
P(|E| > lambda u M sqrt(2 n)) <= 2 exp(-lambda^2 / 2). Over N elements the chance of any exceeding it is p for
lambda = sqrt(2 ln(2 N / p)), and lambda u sqrt(2 n) = sqrt(ln(2 N / p)) eps sqrt(n): that is c.

The magnitude M. For terms of one sign (the weights' sums) partial sums grow towards the sum: M = |s|. For terms of
random sign (products of centred data) |s_k| grows like sqrt(k), so the last is again the largest in size, and the
maximum over the tensor bounds the typical element (Higham & Mary 2020): M = max|oracle|, the default. Where a sum
cancels by its structure (the gradient of a bias shared by a whole row is 0 by the softmax's invariance), pass
magnitude: the max norm of the same sum over the terms' absolute values.

What is owed beside. A method may have a step that the plain formula does not have, as delta = dO . O of a stored O. Its
error is derived where it is passed, and added.

eps and eps_acc. Sums are accumulated in float32 for the half precisions (eps_acc = 2^-23), and in the dtype itself
otherwise; the result is stored in the dtype, which the lone eps pays (half an ulp for storing it, half for an operand
that was stored before). In float64 the oracle's own roundings are of the same size: twice as many steps, sqrt(2) c.
"""

import math

import numpy as np

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
REFUSAL_CHANCE = 1e-9


def max_error(actual, oracle) -> float:
    """max|actual - oracle| in float64; inf where a NaN stands, or where infinities are not in the same places."""
    actual, oracle = np.asarray(actual, dtype=np.float64), np.asarray(oracle, dtype=np.float64)
    assert actual.shape == oracle.shape, f"shape {actual.shape} against the oracle's {oracle.shape}"
    if np.isnan(actual).any() or np.isnan(oracle).any():
        return math.inf
    finite = np.isfinite(oracle)
    if not np.array_equal(actual[~finite], oracle[~finite]):
        return math.inf
    return float(np.max(np.abs(actual[finite] - oracle[finite]), initial=0.0))


def budget(oracle, plain_error: float, terms: int, dtype: str, magnitude: float | None = None) -> float:
    """The largest error allowed, by the formula above; dtype is a key of EPS."""
    oracle = np.asarray(oracle, dtype=np.float64)
    if magnitude is None:
        magnitude = float(np.max(np.abs(oracle[np.isfinite(oracle)]), initial=0.0))
    c = math.sqrt(math.log(2 * max(oracle.size, 1) / REFUSAL_CHANCE))
    if dtype == "float64":
        c *= math.sqrt(2.0)
    accumulation = EPS["float64" if dtype == "float64" else "float32"]
    return 2.0 * plain_error + (c * accumulation * math.sqrt(terms) + EPS[dtype]) * magnitude


def assert_within_budget(
    actual, oracle, plain_error: float, terms: int, dtype: str, name: str, *, magnitude: float | None = None,
    owed: float = 0.0,
) -> None:  # fmt: skip
    """AssertionError, with the figures, where `actual` lies further from `oracle` than the budget.

    actual, oracle: arrays of one shape, any real dtype. plain_error: max_error(plain formula, oracle). terms: how
    many products the longest sum behind one element adds. dtype: what actual was computed in. name: of the tensor,
    for the message. owed: the error of a step that the plain formula does not have, derived where it is passed.
    """
    assert math.isfinite(plain_error), f"{name}: the plain formula's error is {plain_error}: it allows anything"
    error = max_error(actual, oracle)
    allowed = budget(oracle, plain_error, terms, dtype, magnitude) + owed
    where = ""
    if np.size(oracle) and error > allowed:
        with np.errstate(invalid="ignore"):  # -inf - (-inf) in a dead row
            difference = np.abs(np.asarray(actual, dtype=np.float64) - np.asarray(oracle, dtype=np.float64))
        both_infinite = np.asarray(actual) == np.asarray(oracle)
        worst = np.argmax(np.where(both_infinite, 0.0, np.where(np.isnan(difference), np.inf, difference)))
        where = f" at {tuple(int(i) for i in np.unravel_index(worst, np.shape(oracle)))}"
    assert error <= allowed, (
        f"{name} ({dtype}): max error {error:.3e}{where} exceeds the budget {allowed:.3e} "
        f"(plain formula's error {plain_error:.3e}, {terms} terms{f', {owed:.3e} owed beside' if owed else ''})"
    )
