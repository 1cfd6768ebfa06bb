"""Where warps meet in shared memory: found without a barrier between them, and not with one."""

import numpy as np
import pytest

from ptxemu.fault import Fault
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

ALL = np.arange(THREADS, dtype=np.uint32)
MINE, TURNED = ALL * 4, (ALL + 32) % THREADS * 4  # a thread of the other warp has the same place
OTHER_WARP = {
    "a read after a write": "st.shared.b32 [%r1], %r3; {} ld.shared.b32 %r4, [%r2];",
    "a write after a read": "ld.shared.b32 %r4, [%r2]; {} st.shared.b32 [%r1], %r3;",
    "a write after a write": "st.shared.b32 [%r1], %r3; {} st.shared.b32 [%r2], %r3;",
    "a byte of four": "st.shared.b8 [%r2], %rs1; {} ld.shared.b32 %r4, [%r1];",
    "four bytes of a row": "st.shared.b32 [%r2], %r3; {} ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r4}}, [%r5];",
}
GIVEN = {"%r1": MINE, "%r2": TURNED, "%r3": ALL + 1, "%rs1": (ALL + 1).astype(np.uint16), "%r5": ALL // 2 * 16}


@pytest.mark.parametrize("name", OTHER_WARP)
def test_two_warps(name: str) -> None:
    execute(OTHER_WARP[name].format("bar.sync 0;"), GIVEN)
    with pytest.raises(Fault, match="of shared memory with no barrier between"):
        execute(OTHER_WARP[name].format(""), GIVEN)


def test_the_sentence() -> None:
    with pytest.raises(Fault) as fault:
        execute(OTHER_WARP["a read after a write"].format(""), GIVEN)
    assert str(fault.value) == (
        "warp 1, `st.shared.b32 [%r1], %r3`, and warp 0, `ld.shared.b32 %r4, [%r2]`, meet at byte 128 of shared memory "
        "with no barrier between: `ret`, in programs 0, 1, 2"
    )


def test_one_warp_meets_itself() -> None:
    """Races between the threads of one warp, which go in step here, are not modelled."""
    swapped = (ALL ^ 1) * 4
    execute("st.shared.b32 [%r1], %r3; ld.shared.b32 %r4, [%r2];", {"%r1": MINE, "%r2": swapped, "%r3": ALL})


def test_what_changes_nothing_harms_nobody() -> None:
    """Both warps write the same numbers, one after the other or at once; then each reads its own."""
    execute("st.shared.b32 [%r1], 5; bar.sync 0; st.shared.b32 [%r2], 5; ld.shared.b32 %r4, [%r1];", GIVEN)
    half = {"%r1": ALL % 32 * 4, "%r2": ALL % 32}
    found = execute("st.shared.b32 [%r1], %r2; bar.sync 0; ld.shared.b32 %r3, [%r1];", half)
    np.testing.assert_array_equal(found["%r3"], np.broadcast_to(ALL % 32, (PROGRAMS, THREADS)))


def test_before_a_branch_and_after_it() -> None:
    """Programs that part keep what their warps did before."""
    text = """
        st.shared.b32 [%r1], %r3;
        @%p1 bra $there;
        bar.sync 0;
    $there:
        ld.shared.b32 %r4, [%r2];"""
    parted = np.arange(PROGRAMS)[:, None] == np.array([[1]])
    with pytest.raises(Fault, match=r"no barrier between: `ret`, in programs 1$"):
        execute(text, {**GIVEN, "%p1": parted})


def test_memory_that_nobody_wrote_is_nan() -> None:
    found = execute("ld.shared.b32 %r1, [global_smem];", {})
    assert np.isnan(found["%r1"].view(np.float32)).all()


def test_a_program_has_its_own_memory() -> None:
    found = execute(
        "mov.u32 %r1, %ctaid.x; st.shared.b32 [global_smem], %r1; bar.sync 0; ld.shared.b32 %r2, [global_smem];", {}
    )
    np.testing.assert_array_equal(found["%r2"], found["%r1"])
