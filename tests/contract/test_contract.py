"""Every encoding, every backend, every dtype: outputs, lse and every gradient against the float64 oracle."""

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from relattn import UnsupportedError
from tests import seeds
from tests.contract.axes import AXES_CASES
from tests.contract.blocks import TESTED_BACKENDS, make_blocks_small
from tests.contract.cases import CASES, DIFFERENT, DTYPES, EncodingCase, TermsCase, expected_answer
from tests.contract.check import compare, expect
from tests.contract.settings import Setting, settings_of
from tests.contract.subject import Subject, make_subject


def assert_refused(subject: Subject, backend: str, return_lse: bool) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        subject.run(backend, return_lse)
    assert refusal.value.reasons[backend], "a refusal gives its reasons"
    assert all(reason in str(refusal.value) for reason in refusal.value.reasons[backend])


def check_all(case: EncodingCase | TermsCase, dtype: str, setting: Setting, return_lse: bool) -> None:
    """Each backend runs the call within the budget, or refuses it with reasons, as the registry says.

    In float32 native too, which computes in it.
    """
    subject = make_subject(case, setting, dtype)
    expected = expect(subject, dtype, return_lse=return_lse)
    for backend in (*TESTED_BACKENDS, *(("native",) if dtype == "float32" else ())):
        note(f"backend: {backend}")
        with pytest.MonkeyPatch.context() as monkeypatch:
            make_blocks_small(seeds.seed(setting.seed, "blocks"), monkeypatch)
            answer = expected_answer(backend, case, setting, return_lse)
            if answer != "refuses":
                try:
                    compare(subject, backend, dtype, expected)
                    continue
                except UnsupportedError:
                    assert answer == "either", f"{backend} refuses what it runs"
            assert_refused(subject, backend, return_lse)


@pytest.mark.one_in(4)
@pytest.mark.pairs
@pytest.mark.parametrize("examples", [3, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*CASES, *AXES_CASES])
def test_answers_and_gradients(name: str, dtype: str, examples: int) -> None:
    """Over fresh settings, half of them bare, which every backend that runs the encoding at all must run.

    The backends take turns on the same numbers, for the truth takes longer than any of them.
    """
    case = (CASES | AXES_CASES)[name]
    requirements = case.requirements()

    @settings(max_examples=examples)
    @given(
        st.one_of(settings_of(**requirements), settings_of(**requirements, kind="bare")),
        st.sampled_from((True, True, False)),
    )
    def body(setting: Setting, return_lse: bool) -> None:
        check_all(case, dtype, setting, return_lse)

    body()


@pytest.mark.one_in(4)
@pytest.mark.pairs
@pytest.mark.parametrize("examples", [3, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DIFFERENT)
def test_softcap_key_bias_and_sinks(name: str, dtype: str, examples: int) -> None:
    """The terms that belong to no axis, beside every kind of table and mask."""

    @settings(max_examples=examples)
    @given(settings_of(**CASES[name].requirements(), kind="capped"), st.booleans())
    def body(setting: Setting, return_lse: bool) -> None:
        check_all(CASES[name], dtype, setting, return_lse)

    body()
