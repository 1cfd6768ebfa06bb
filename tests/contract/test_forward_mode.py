"""Derivatives in forward mode (jvp, jacfwd, hessian, dual numbers): every encoding, starts and explicit positions."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from relattn import UnsupportedError, relative_attention
from tests.contract.axes import AXES_CASES
from tests.contract.cases import CASES
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import Subject, make_subject

pytestmark = pytest.mark.one_in(8)


class Called(nn.Module):
    """A subject's call, whose parameters `functional_call` replaces."""

    def __init__(self, subject: Subject, backend: str) -> None:
        super().__init__()
        self.subject, self.backend = subject, backend
        self.parts = nn.ModuleList([part.module for part in subject.parts])

    def forward(self, arrays: dict[str, Tensor]) -> Tensor:
        return replace(self.subject, arrays=arrays).run(self.backend, return_lse=False).sin().sum()


def loss_of(subject: Subject, backend: str) -> Callable[..., Tensor]:
    """A number that depends on the output, as a function of the subject's tensors."""
    called = Called(subject, backend)

    def loss(*tensors: Tensor) -> Tensor:
        arrays = dict(zip(subject.arrays, tensors, strict=True))
        parameters = {f"parts.{name}": array for name, array in arrays.items() if name[0].isdigit()}
        return torch.func.functional_call(called, parameters, (arrays,))

    return loss


def with_explicit_positions(setting: Setting, rng: np.random.Generator) -> Setting:
    return replace(
        setting, query_position=rng.permutation(setting.query_length), key_position=rng.permutation(setting.key_length)
    )


@pytest.mark.parametrize("name", [*CASES, *AXES_CASES])
def test_forward_mode(name: str, rng: np.random.Generator) -> None:
    """The first derivative along a direction, by both ways to ask for it, and that of the gradients: `reference`'s."""
    case = (CASES | AXES_CASES)[name]
    setting = random_setting(rng, **case.requirements(), kind="small")
    for one in (setting,) if name in AXES_CASES else (setting, with_explicit_positions(setting, rng)):
        subject = make_subject(case, one)
        tensors = tuple(array.detach() for array in subject.arrays.values())
        tangents = tuple(torch.randn_like(tensor) for tensor in tensors)
        loss, expected = loss_of(subject, "auto"), loss_of(subject, "reference")
        _, first = torch.func.jvp(expected, tensors, tangents)
        torch.testing.assert_close(torch.func.jvp(loss, tensors, tangents)[1], first)
        with forward_ad.dual_level():
            by_dual_numbers = loss(*map(forward_ad.make_dual, tensors, tangents))
            torch.testing.assert_close(forward_ad.unpack_dual(by_dual_numbers).tangent, first)
        every = tuple(range(len(tensors)))
        found, wanted = (
            torch.func.jvp(torch.func.grad(by, argnums=every), tensors, tangents)[1] for by in (loss, expected)
        )
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", ["sdpa", "native", "blocks"])
def test_who_cannot_says_so(backend: str) -> None:
    def loss(query: Tensor) -> Tensor:
        return relative_attention(query, query, query, backend=backend).sum()

    with pytest.raises(UnsupportedError, match="it has no forward-mode derivative") as refusal:
        torch.func.jacfwd(loss)(torch.randn(1, 2, 3, 4))
    assert str(refusal.value).startswith(f"backend={backend!r} cannot run this: ")
