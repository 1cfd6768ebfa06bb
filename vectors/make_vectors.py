"""Makes the published test vectors, one safetensors file per encoding, from the float64 oracles in `tests/oracle`.

    python -m vectors.make_vectors [FOLDER]         from the repository's root; FOLDER is `vectors` unless given

README.md beside this script says what a file holds. To add one, add a line to FILES in contents.py; a change of a file
that exists raises VERSION.

Inputs and parameters are whole multiples of 1/64 from -2 to 2, from 1/64 where an equation asks for numbers above 0.
float64, float32, bfloat16 and float16 all hold them exactly: whatever dtype another project computes in, it starts from
the same numbers. Gradients are complex-step derivatives of the oracles (`tests/oracle/gradient.py`).
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.oracle import Answer, OnAxis, complex_step_gradients, sum_of_encodings
from vectors.contents import FILES, MASKS, File, Part

VERSION = 1
METADATA_KEY = "relattn"  # a single one: of several, safetensors writes the order anew in every process


def tensor_name(file: File, part: Part, parameter: str) -> str:
    """A parameter's own name; in a sum, the encoding's before it, with its axis."""
    whose = part.name if part.axis is None else f"{part.name}_{part.axis}"
    return f"{whose}.{parameter}" if len(file.parts) > 1 else parameter


def draw(name: str, file: File) -> dict[str, np.ndarray]:
    """The inputs and parameters, always the same: the seed is the file's name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    s = file.sizes
    shapes = {"query": (s.batch, s.heads, s.queries, s.width), "grad_output": (s.batch, s.heads, s.queries, s.width)}
    shapes |= {one: (s.batch, s.heads, s.keys, s.width) for one in ("key", "value")}
    least = dict.fromkeys(shapes, -128)
    for part in file.parts:
        for one, parameter in part.parameters.items():
            name = tensor_name(file, part, one)
            shapes[name], least[name] = parameter.shape, 1 if parameter.positive else -128
    shapes |= {one: term.shape for one, term in file.terms.items()}
    return {one: rng.integers(least.get(one, -128), 129, shape) / 64.0 for one, shape in shapes.items()}


def answer(file: File, arrays: Mapping[str, np.ndarray], call: Mapping[str, Any]) -> Answer:
    """The oracle's answer to one call."""
    parts = []
    for part in file.parts:
        own = {one: arrays[tensor_name(file, part, one)] for one in part.parameters}
        parts.append((part.oracle, own, part.oracle_settings | ({} if part.axis is None else {"on": part.axis})))
    more: dict[str, Any] = {one: arrays[one] for one in file.terms}
    if "key_mask" in call:
        more["key_mask"] = MASKS[call["key_mask"]]
    if "axes" in call:
        more["axes"] = {name: on_axis(positions) for name, positions in call["axes"].items()}
    inputs = arrays["query"], arrays["key"], arrays["value"]
    return sum_of_encodings(inputs, parts or [("none", {}, {})], scale=file.scale, **{**call, **more})


def on_axis(positions: Sequence[int | None]) -> OnAxis:
    """Where queries and keys stand, None for those that lead and stand nowhere."""
    standing = np.array([0 if one is None else one for one in positions])
    return OnAxis(standing, standing, (positions.count(None), positions.count(None)))


def results(file: File, arrays: Mapping[str, np.ndarray], call: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What one call gives, and the gradients of sum(output * grad_output)."""
    output, lse, weights = answer(file, arrays, call)
    beside_no_sink = weights
    if "sinks" in file.terms:
        taken = weights.sum(-1, keepdims=True)
        beside_no_sink = weights / np.where(taken == 0.0, 1.0, taken)
    with np.errstate(divide="ignore"):
        scores = np.log(beside_no_sink) + lse[..., None]  # the logarithm of 0, a pair that is hidden, is -inf
    differentiated = {one: array for one, array in arrays.items() if one != "grad_output"}
    gradients = complex_step_gradients(lambda moved: answer(file, moved, call), differentiated, arrays["grad_output"])
    gradients = {f"grad.{one}": gradient for one, gradient in gradients.items()}
    return {"scores": scores, "weights": weights, "output": output, "lse": lse} | gradients


def tensors(name: str) -> dict[str, np.ndarray]:
    """Everything that the file holds, by name."""
    file = FILES[name]
    arrays = draw(name, file)
    masks = {call["key_mask"] for call in file.cases.values() if "key_mask" in call}
    held = arrays | {mask: MASKS[mask] for mask in masks}
    for case, call in file.cases.items():
        held |= {f"{case}.{one}": array for one, array in results(file, arrays, call).items()}
    return held


def about(name: str) -> dict[str, Any]:
    """What the file says of itself."""
    file = FILES[name]
    defaults = {"is_causal": False, "window": None, "query_position": 0, "key_position": 0, "key_mask": None}
    encodings = [
        {
            "name": part.name,
            **({} if part.axis is None else {"axis": part.axis}),
            "settings": part.settings,
            "parameters": {tensor_name(file, part, one): p.meaning for one, p in part.parameters.items()},
        }
        for part in file.parts
    ]
    terms = {"terms": {one: term.meaning for one, term in file.terms.items()}} if file.terms else {}
    return {
        "version": VERSION,
        "equation": file.equation,
        "offset": "d = j - i, key position - query position; negative: the key lies in the past",
        "source": file.source,
        "encodings": encodings,
        **terms,
        "cases": {case: {"scale": file.scale} | defaults | call for case, call in file.cases.items()},
        "gradients": "<case>.grad.<tensor> is the gradient of sum(output * grad_output) by that tensor",
    }


def write(name: str, folder: Path) -> None:
    """Write one file into a folder."""
    contiguous = {one: np.ascontiguousarray(array) for one, array in tensors(name).items()}
    metadata = {METADATA_KEY: json.dumps(about(name), indent=1)}
    save_file(contiguous, folder / f"{name}.safetensors", metadata=metadata)


def main(folder: Path) -> None:
    """Write every file into a folder."""
    for name in FILES:
        write(name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
