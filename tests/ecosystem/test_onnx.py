"""ONNX export through the dense backend, run in onnxruntime: the module's numbers in float32, at any length."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from tests.ecosystem import test_axes as axes
from tests.ecosystem.layers import LENGTHS, LONGEST, Attention, attention, axisless, every_traced_encoding, inputs
from tests.ecosystem.test_conformer import conformer
from tests.oracle import assert_within_budget, max_error

pytest_plugins = ["tests.contract.fresh"]
quietly = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Session:
    """A module exported with open lengths, as onnxruntime runs it."""

    def __init__(self, module: nn.Module, given: list[Tensor], **more: Tensor):
        queries, keys = (torch.export.Dim(which, min=1, max=LONGEST) for which in ("queries", "keys"))
        names, last = ["query", "key"][: len(given)], (queries, keys)[len(given) - 1]
        lengths = {
            **dict(zip(names, ({1: queries}, {1: keys}), strict=False)),
            **{name: {tensor.dim() - 1: last} for name, tensor in more.items()},
        }
        program = torch.onnx.export(module.eval(), tuple(given), kwargs=more, dynamic_shapes=lengths, verbose=False)
        assert program is not None
        self.session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())

    def __call__(self, *given: Tensor, **more: Tensor) -> np.ndarray:
        names = [entry.name for entry in self.session.get_inputs()]
        assert len(names) == len(given) + len(more)
        feed = {name: tensor.numpy() for name, tensor in zip(names, [*given, *more.values()], strict=True)}
        return self.session.run(None, feed)[0]


def assert_equal_numbers(session: Session, module: Attention, *lengths: int, masked: bool, **more: Tensor) -> None:
    """Against the module in float64, as far as the budget of float32 goes."""
    given = inputs(*lengths, dtype=torch.float32)
    if masked:
        more["key_mask"] = torch.stack([torch.arange(lengths[-1]) < 2, torch.zeros(lengths[-1]) > 0])
    ours = session(*given, **more)
    with torch.no_grad():
        plain = module.float()(*given, **more).double().numpy()
        wide = {name: x.double() if x.is_floating_point() else x for name, x in more.items()}
        truth = module.double()(*(x.double() for x in given), **wide).numpy()
    terms = 2 * given[0].shape[-1] + 2 * module.layer.out_proj.in_features + lengths[-1]
    assert_within_budget(ours, truth, max_error(plain, truth), terms, "float32", f"output for lengths {lengths}")


def assert_runs_in_onnx(module: Attention) -> None:
    """One session has the module's numbers at every length."""
    module.float()
    session = Session(module, inputs(11, 15, dtype=torch.float32), key_mask=torch.ones(2, 15, dtype=torch.bool))
    for lengths in [*LENGTHS, (1, 9), (1, 1)]:
        assert_equal_numbers(session, module, *lengths, masked=True)


@quietly
@pytest.mark.slow
@every_traced_encoding
def test_every_length(name: str, rng: np.random.Generator) -> None:
    assert_runs_in_onnx(attention(name, rng))


@quietly
@pytest.mark.slow
def test_the_conformer_s_layer(rng: np.random.Generator) -> None:
    assert_runs_in_onnx(conformer())


@quietly
@pytest.mark.slow
@axes.every_encoding
def test_encodings_of_several_axes(name: str) -> None:
    module, x = axes.OnAGrid(axes.ENCODINGS[name]()).float().eval(), axes.inputs(dtype=torch.float32)
    program = torch.onnx.export(module, (x,), verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    x = axes.inputs(dtype=torch.float32)
    (ours,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        plain, truth = module(x).double().numpy(), module.double()(x.double()).numpy()
    terms = 2 * axes.WIDTH + 2 * axes.HEADS * axes.HEAD_DIM + axes.LENGTH
    assert_within_budget(ours, truth, max_error(plain, truth), terms, "float32", name)


@pytest.mark.slow
@quietly
def test_auto_takes_dense(rng: np.random.Generator) -> None:
    """Lengths are open, so that outside of ONNX "auto" would take blocks."""
    module = attention("shaw", rng, "auto", fixed={"is_causal": True}).float()
    session = Session(module, inputs(11, dtype=torch.float32))
    for length in (1, 7, LONGEST):
        assert_equal_numbers(session, module, length, masked=False)


@pytest.mark.slow
@quietly
def test_a_key_bias_sinks_and_a_cap(rng: np.random.Generator) -> None:
    module = attention("shaw", rng, fixed={"is_causal": True, "softcap": 2.0}).float()
    more = {name: tensor.float() for name, tensor in axisless(11, 11).items()}
    session = Session(module, inputs(11, dtype=torch.float32), **more)
    for length in (1, 7, LONGEST):
        more = {name: tensor.float() for name, tensor in axisless(length, length).items()}
        assert_equal_numbers(session, module, length, masked=False, **more)


@quietly
def test_blocks_is_refused(rng: np.random.Generator) -> None:
    module = attention("shaw", rng, "blocks").float()
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        Session(module, inputs(11, dtype=torch.float32))
    said = "backend='blocks' cannot run this: ONNX has no operator for its blocks; use 'dense' or 'reference'"
    assert said in str(caught.value)
