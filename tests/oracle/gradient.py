"""Exact gradients without automatic differentiation: the complex step (Squire & Trapp 1998; Martins et al. 2003).

    d f / d x  =  Im f(x + i h) / h,     h = 1e-30

There is no difference of nearby numbers, so no cancellation: the result is as accurate as f itself. It asks that f be
analytic and evaluated in complex arithmetic, which every oracle here is. Perturbations of many elements are evaluated
at once, stacked on an extra leading axis.
"""

from collections.abc import Callable, Mapping

import numpy as np

STEP = 1e-30
CHUNK = 256  # perturbations per evaluation: bounds the memory of gathered tables


def complex_step_gradients(
    function: Callable[[dict[str, np.ndarray]], object], arrays: Mapping[str, np.ndarray], cotangents
) -> dict[str, np.ndarray]:
    """d <cotangents, function(arrays)> / d array, for every element of every array.

    function: maps {name: array} to an array or a tuple of arrays (an Answer); any one array may arrive complex with
    one extra leading axis. cotangents: one real array (the first output's) or a sequence, None where an output takes
    no part; shorter than the outputs is fine.
    """
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    gradients = {}
    for name, array in arrays.items():
        flat = np.empty(array.size)
        for start in range(0, array.size, CHUNK):
            elements = np.arange(start, min(start + CHUNK, array.size))
            perturbed = np.repeat(array.reshape(1, -1), len(elements), axis=0).astype(np.complex128)
            perturbed[np.arange(len(elements)), elements] += 1j * STEP
            outputs = function({**arrays, name: perturbed.reshape(-1, *array.shape)})
            flat[elements] = _contract(outputs, cotangents)
        gradients[name] = flat.reshape(array.shape)
    return gradients


def directional_derivative(
    function: Callable[[dict[str, np.ndarray]], object],
    arrays: Mapping[str, np.ndarray],
    directions: Mapping[str, np.ndarray],
    cotangents,
) -> float:
    """d/dt <cotangents, function(arrays + t directions)> at t = 0, in one evaluation; unnamed arrays stay."""
    moved: dict[str, np.ndarray] = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    for name, direction in directions.items():
        moved[name] = moved[name] + 1j * STEP * direction
    return float(_contract(function(moved), cotangents))


def _contract(outputs, cotangents) -> np.ndarray:
    """sum of cotangent * derivative over all outputs: [perturbations], or a number where there is no leading axis."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangents = cotangents if isinstance(cotangents, (tuple, list)) else (cotangents,)
    assert len(cotangents) <= len(outputs), "more cotangents than outputs"
    total = np.zeros(())
    for output, cotangent in zip(outputs, cotangents, strict=False):
        if cotangent is not None:
            # Only the imaginary part enters, so that the -inf of a dead row's lse does not.
            axes = tuple(range(-np.ndim(cotangent), 0))
            total = total + (np.imag(output) / STEP * cotangent).sum(axis=axes)
    return total
