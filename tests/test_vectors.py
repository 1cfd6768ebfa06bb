"""The published test vectors are what their script makes, relattn agrees with them, and their page is true."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from relattn import (
    AlibiBias,
    DisentangledEmbedding,
    GridBias,
    GridEmbedding,
    KerpleBias,
    LogGridBias,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    SandwichBias,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    attention_weights,
    grid,
)
from relattn.backends.select import BACKENDS
from tests.contract.cases import Part
from tests.contract.check import accumulation_eps, gradients_of, numpy_of, sum_lengths
from tests.contract.places import Place
from tests.contract.plain import magnitudes, plain_attention
from tests.contract.settings import Setting
from tests.contract.subject import INPUTS, Subject
from tests.oracle import Answer, assert_within_budget, max_error
from tests.test_docs import broken_links, run
from vectors import make_vectors
from vectors.contents import FILES, GRID

FOLDER = Path(__file__).parent.parent / "vectors"
NAMES = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
PAGE = FOLDER / "README.md"
LAST_DIGITS = 1e-13  # what the page promises between machines: some hundred roundings of 2^-53, one after the other


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and description of a file, read as anyone would."""
    with safe_open(path, framework="pt") as file:
        return load_file(path), json.loads(file.metadata()["relattn"])


# --- the files are the script's


def assert_same_vectors(folder: Path, other: Path) -> None:
    """AssertionError where two folders hold other files, other tensors or other numbers than in the last digits."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert names == sorted(path.name for path in other.glob("*.safetensors")), "not the same files"
    for name in names:
        (tensors, about), (others, about_other) = load(folder / name), load(other / name)
        assert about == about_other, f"{name}: another description"
        assert tensors.keys() == others.keys(), f"{name}: other tensors"
        for one, tensor in tensors.items():
            where = f"{name}: {one}"
            assert (tensor.dtype, tensor.shape) == (others[one].dtype, others[one].shape), f"{where} is of another kind"
            call, dot, _ = one.partition(".")
            if dot and call in about["cases"]:
                error = max_error(tensor.numpy(), others[one].numpy())
                finite = tensor[tensor.isfinite()]
                assert error <= LAST_DIGITS * float(finite.abs().max()), f"{where} differs by {error}"
            else:
                assert torch.equal(tensor, others[one]), f"{where} is not the same"


def test_the_script_makes_these_files(tmp_path: Path) -> None:
    make_vectors.main(tmp_path)
    assert_same_vectors(FOLDER, tmp_path)


def test_the_script_makes_the_same_bytes_again(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        make_vectors.write("sum", tmp_path)
        written.append((tmp_path / "sum.safetensors").read_bytes())
    assert written[0] == written[1]


def edited(name: str, folder: Path, edit: Any) -> None:
    """A copy of all files into the folder, one of them edited: edit(tensors, about)."""
    for path in FOLDER.glob("*.safetensors"):
        (folder / path.name).write_bytes(path.read_bytes())
    tensors, about = load(folder / f"{name}.safetensors")
    edit(tensors, about)
    save_file(tensors, folder / f"{name}.safetensors", {"relattn": json.dumps(about)})


def nudge(tensors: dict[str, torch.Tensor], name: str) -> None:
    """One number of a tensor moves in its twelfth digit."""
    flat = tensors[name].view(-1)
    place = int(flat.abs().nan_to_num(posinf=0.0).argmax())
    flat[place] *= 1.0 + 2e-12


EDITS: dict[str, tuple[Any, str]] = {
    "nothing": (lambda tensors, about: None, ""),
    "an input": (lambda tensors, about: nudge(tensors, "query"), "query is not the same"),
    "a parameter": (lambda tensors, about: nudge(tensors, "shaw.relative_keys"), "shaw.relative_keys is not the same"),
    "scores": (lambda tensors, about: nudge(tensors, "causal.scores"), "causal.scores differs"),
    "weights": (lambda tensors, about: nudge(tensors, "full.weights"), "full.weights differs"),
    "an output": (lambda tensors, about: nudge(tensors, "start.output"), "start.output differs"),
    "an lse": (lambda tensors, about: nudge(tensors, "start.lse"), "start.lse differs"),
    "a gradient": (lambda tensors, about: nudge(tensors, "full.grad.t5.bias"), "full.grad.t5.bias differs"),
    "a tensor gone": (lambda tensors, about: tensors.pop("key"), "other tensors"),
    "a setting": (lambda tensors, about: about["encodings"][1]["settings"].update(max_distance=[2, 3]), "description"),
    "the version": (lambda tensors, about: about.update(version=2), "description"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", EDITS)
def test_a_file_edited_by_hand_is_found(what: str, tmp_path: Path) -> None:
    edit, complaint = EDITS[what]
    edited("sum", tmp_path, edit)
    if not complaint:
        return assert_same_vectors(FOLDER, tmp_path)
    with pytest.raises(AssertionError, match=f"sum.safetensors.*{re.escape(complaint)}"):
        assert_same_vectors(FOLDER, tmp_path)


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    edited("none", tmp_path, EDITS["nothing"][0])
    (tmp_path / "none.safetensors").unlink()
    with pytest.raises(AssertionError, match="not the same files"):
        assert_same_vectors(FOLDER, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_holds_the_inputs_and_parameters_exactly(name: str) -> None:
    tensors, about = load(FOLDER / f"{name}.safetensors")
    parameters = [one for encoding in about["encodings"] for one in encoding["parameters"]]
    for one in (*INPUTS, "grad_output", *parameters, *about.get("terms", {})):
        assert tensors[one].dtype == torch.float64
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert torch.equal(tensors[one].to(dtype).double(), tensors[one]), f"{one} in {dtype}"


# --- relattn agrees with them


def module_of(encoding: dict[str, Any], tensors: dict[str, torch.Tensor]) -> RelativeEncoding:
    """relattn's module for one encoding of a file, from what the file says; of one on an axis without `.on`."""
    settings = dict(encoding["settings"])
    tables = [tensors[one] for one in encoding["parameters"]]
    _, heads, _, width = tensors["query"].shape
    table_heads = tables[0].shape[0] if tables and tables[0].shape[0] > 1 else None
    match encoding["name"]:
        case "shaw":
            distance = tuple(settings.pop("max_distance"))
            return ShawEmbedding(width, distance, num_heads=table_heads, values=len(tables) == 2, **settings)
        case "relative":
            return RelativeEmbedding(width, num_heads=table_heads, **settings)
        case "transformer_xl":
            assert settings.pop("learned") == ("max_length" in settings)
            return TransformerXLEmbedding(heads, width, **settings)
        case "t5":
            return T5Bias(heads, **settings)
        case "alibi":
            return AlibiBias(heads, **settings)
        case "kerple":
            return KerpleBias(heads, **settings)
        case "sandwich":
            return SandwichBias(heads, **settings)
        case "disentangled":
            return DisentangledEmbedding(heads, width, **settings)
        case "rope":
            return RotaryEmbedding(width, **settings)
        case "grid_bias":
            return GridBias(num_heads=heads, **settings)
        case "grid_embedding":
            return GridEmbedding(width, num_heads=table_heads, **settings)
        case "log_grid":
            return LogGridBias(num_heads=heads, **settings)
    raise AssertionError(f"no module for {encoding['name']}")


def subject_of(
    name: str, tensors: dict[str, torch.Tensor], about: dict[str, Any], call: dict[str, Any], dtype: torch.dtype
) -> Subject:
    """A call of a file as the contract suite compares calls; the settings of the plain formula are the oracle's."""
    parts, arrays = [], {one: tensors[one].to(dtype).requires_grad_() for one in (*INPUTS, *about.get("terms", {}))}
    for i, (encoding, file_part) in enumerate(zip(about["encodings"], FILES[name].parts, strict=True)):
        module = module_of(encoding, tensors).to(dtype)
        prefix = f"{whose(encoding)}." if len(about["encodings"]) > 1 else ""
        module.load_state_dict({one.removeprefix(prefix): tensors[one] for one in encoding["parameters"]})
        arrays |= {f"{i}.{one}": parameter for one, parameter in module.named_parameters()}
        on = {} if file_part.axis is None else {"on": file_part.axis}
        moved = module.on(file_part.axis) if on else module
        parts.append(Part(moved, file_part.oracle, file_part.oracle_settings | on))
    keywords = dict(call)
    if keywords["window"] is not None:
        keywords["window"] = tuple(keywords["window"])
    if keywords["key_mask"] is not None:
        keywords["key_mask"] = tensors[keywords["key_mask"]].numpy()
    keywords["axes"] = {axis: (place_of(axis, at),) * 2 for axis, at in keywords.get("axes", {}).items()}
    batch, heads, queries, width = tensors["query"].shape
    setting = Setting(batch, heads, heads, queries, tensors["key"].shape[2], width, width, **keywords)
    return Subject(setting, arrays, parts)


def place_of(axis: str, positions: list[int | None]) -> Place:
    """Where both sides stand; tokens that stand off the grid lead the grid of the contents."""
    listed, prefix_tokens = np.array([0 if one is None else one for one in positions]), positions.count(None)
    return Place(grid(*GRID, prefix_tokens=prefix_tokens)[axis] if prefix_tokens else listed, listed, prefix_tokens)


def whose(encoding: dict[str, Any]) -> str:
    """What an encoding's tensors have before their names in a sum."""
    return f"{encoding['name']}_{encoding['axis']}" if "axis" in encoding else encoding["name"]


def name_in_file(array: str, about: dict[str, Any]) -> str:
    """The file's name of a subject's array: "1.relative_keys" is "shaw.relative_keys", or "relative_keys" if alone."""
    index, dot, parameter = array.partition(".")
    if not dot:
        return array
    encodings = about["encodings"]
    return f"{whose(encodings[int(index)])}.{parameter}" if len(encodings) > 1 else parameter


def check_call(name: str, call: str, backend: str, dtype: str) -> None:
    """A backend's outputs, lse and gradients lie within the contract's error budget around the file's."""
    tensors, about = load(FOLDER / f"{name}.safetensors")
    torch_dtype = getattr(torch, dtype)
    subject = subject_of(name, tensors, about, about["cases"][call], torch_dtype)
    truth = {one: tensors[f"{call}.{one}"].numpy() for one in ("output", "lse", "weights")}
    truth |= {
        f"gradient of {one}": tensors[f"{call}.grad.{name_in_file(one, about)}"].numpy() for one in subject.arrays
    }
    cotangents = tensors["grad_output"].numpy(), np.zeros_like(truth["lse"])

    def rows(output: torch.Tensor, lse: torch.Tensor | None) -> dict[str, np.ndarray]:
        found = {"output": output} | ({} if lse is None else {"lse": lse})
        gradients = gradients_of(output, None, subject.arrays, cotangents)
        found |= {f"gradient of {one}": gradient for one, gradient in gradients.items()}
        return {one: numpy_of(tensor) for one, tensor in found.items()}

    actual = subject.run(backend, return_lse=backend != "sdpa")
    actual = rows(*actual) if backend != "sdpa" else rows(actual, None)
    plain = plain_attention(subject, subject.arrays, torch_dtype)
    formula = rows(plain.output, plain.lse)
    answer = Answer(truth["output"], truth["lse"], truth["weights"])
    sizes = magnitudes(subject, answer, accumulation_eps(dtype), cotangents)
    terms = sum_lengths(subject)
    if backend == "dense":
        actual["weights"], formula["weights"] = (
            numpy_of(attention_weights(**subject.arguments())),
            numpy_of(plain.weights),
        )
    for one, array in actual.items():
        plain_error = max_error(formula[one], truth[one])
        what = f"{name}, {call}: {one}"
        assert_within_budget(array, truth[one], plain_error, terms[one], dtype, what, magnitude=sizes[one])


OF_A_CPU = [backend for backend in BACKENDS if backend != "triton"]


def calls_of(name: str, backend: str) -> list[str]:
    """The calls of a file that a backend runs: sdpa has no tables, starts or masks but causality."""
    calls = list(FILES[name].cases)
    if backend == "triton" and name in ON_OTHER_AXES:
        return []
    if backend in ("sdpa", "triton") and name in OF_NO_OFFSET:
        return []
    if backend == "triton":
        return [call for call in calls if call != OF_EACH_ROW]
    if backend != "sdpa":
        return calls
    rotations = all(part.name == "rope" for part in FILES[name].parts)
    return [call for call in calls if rotations and call in ("full", "causal")]


ON_OTHER_AXES = [name for name, file in FILES.items() if any("axes" in call for call in file.cases.values())]
OF_NO_OFFSET = [name for name, file in FILES.items() if file.terms or any("softcap" in c for c in file.cases.values())]
OF_EACH_ROW = "left_padding"
"""The call whose batch elements stand at positions of their own."""
DTYPES_OF = {"native": ["float32"]}
"""Of the backends that do not run both."""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("name", "backend", "dtype"),
    [
        pytest.param(name, backend, dtype, marks=pytest.mark.slow if dtype != dtypes[0] else ())
        for name in FILES
        for backend in OF_A_CPU
        for dtypes in [DTYPES_OF.get(backend, ["float64", "float32"])]
        for dtype in dtypes
        if calls_of(name, backend)
    ],
)
def test_relattn_agrees_with_the_file(name: str, backend: str, dtype: str) -> None:
    for call in calls_of(name, backend):
        check_call(name, call, backend, dtype)


# --- the page


def test_the_page_lists_the_files_and_their_calls() -> None:
    listed = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([\w, ]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: calls.split(", ") for name, calls in listed} == {name: list(FILES[name].cases) for name in NAMES}


def test_the_page_s_code_runs_and_its_links_lead_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parent)
    run(PAGE)
    assert broken_links(PAGE) == []


def test_the_page_names_the_version_and_the_fields() -> None:
    text = PAGE.read_text()
    assert f"These are version {make_vectors.VERSION} " in text
    _, about = load(FOLDER / "sum.safetensors")
    assert all(f"`{field}`" in text for field in about)
    assert all(f"`{keyword}`" in text for keyword in about["cases"]["full"])


def test_the_files_are_small() -> None:
    sizes = [path.stat().st_size for path in FOLDER.glob("*.safetensors")]
    assert max(sizes) < 64 * 1024 and sum(sizes) < 32 * 1024 * len(sizes)
