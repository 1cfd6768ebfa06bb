"""Keras from 3.15 on with one of its three backends, or one sentence that says what is missing.

Every module of `relattn.keras` takes `keras` and `ops` from here.
"""

from __future__ import annotations

from typing import Any

from relattn.errors import not_installed

try:
    import keras
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise not_installed("keras", "keras") from None
    raise ModuleNotFoundError(
        f"relattn.keras: Keras cannot start its backend, for {error.name!r} is not installed; install it, or set the "
        "environment variable KERAS_BACKEND to 'tensorflow', 'jax' or 'torch' before Python starts",
        name=error.name,
    ) from error

FIRST, END = (3, 15), (4,)
"""From 3.15 on `MultiHeadAttention` passes `use_causal_mask` to its `_compute_attention`, which our class overrides."""

if not FIRST <= tuple(int(part) for part in keras.__version__.split(".")[:2]) < END:
    raise ImportError(
        f"relattn.keras: got Keras {keras.__version__}; expected 3.15 or later below 4: pip install '.[keras]' in a "
        "clone of relattn"
    )

ops: Any = keras.ops  # its own annotations are guesses

BACKENDS = ("tensorflow", "jax", "torch")

if keras.backend.backend() not in BACKENDS:
    raise ImportError(
        f"relattn.keras: got the Keras backend {keras.backend.backend()!r}; expected one of "
        f"{', '.join(map(repr, BACKENDS))}: set the environment variable KERAS_BACKEND before Python starts"
    )

__all__ = ["BACKENDS", "keras", "ops"]
