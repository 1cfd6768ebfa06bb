"""Every encoding, every backend, every dtype: outputs, lse and every gradient against the float64 oracle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relattn import UnsupportedError
from tests.contract.cases import CASES, DTYPES, expected_answer
from tests.contract.check import check
from tests.contract.settings import Setting, settings_of
from tests.contract.subject import make_subject
from tests.contract.tiles import TESTED_BACKENDS

pytest_plugins = ["tests.contract.fresh"]

pytestmark = [
    pytest.mark.parametrize("dtype", DTYPES),
    pytest.mark.parametrize("backend", TESTED_BACKENDS, indirect=True),
    pytest.mark.parametrize("name", CASES),
]


def check_one(name: str, backend: str, dtype: str, setting: Setting, return_lse: bool) -> None:
    """The backend runs the call within the budget, or refuses it with reasons, as the registry says."""
    case = CASES[name]
    subject = make_subject(case, setting, dtype)
    answer = expected_answer(backend, case, setting, return_lse)
    if answer != "refuses":
        try:
            return check(subject, backend, dtype, return_lse=return_lse)
        except UnsupportedError:
            assert answer == "either", f"{backend} refuses what it runs"
    with pytest.raises(UnsupportedError) as refusal:
        subject.run(backend, return_lse)
    assert refusal.value.reasons[backend], "a refusal gives its reasons"
    assert all(reason in str(refusal.value) for reason in refusal.value.reasons[backend])


@pytest.mark.parametrize("examples", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_answers_and_gradients(name: str, backend: str, dtype: str, examples: int) -> None:
    """Over fresh settings, half of them bare, which every backend that runs the encoding at all must run."""
    requirements = CASES[name].requirements()

    @settings(max_examples=examples)
    @given(
        st.one_of(settings_of(**requirements), settings_of(**requirements, kind="bare")),
        st.sampled_from((True, True, False)),
    )
    def body(setting: Setting, return_lse: bool) -> None:
        check_one(name, backend, dtype, setting, return_lse)

    body()
