"""The text of a kernel, read; and that every instruction which is modelled is tested alone."""

import pytest

from ptxemu.fault import Fault
from ptxemu.instructions import FAMILIES, STEPS
from ptxemu.operands import Address, Group, Number, Register, Symbol, operand, operands
from ptxemu.program import Guard, read
from ptxemu.tests import (
    test_access,
    test_arithmetic,
    test_atomics,
    test_bits,
    test_comparisons,
    test_control,
    test_conversions,
    test_copies,
    test_lanes,
    test_matrices,
    test_moves,
)

TESTS = (
    test_access, test_arithmetic, test_atomics, test_bits, test_comparisons, test_control, test_conversions,
    test_copies, test_lanes, test_matrices, test_moves,
)  # fmt: skip
KERNEL = """
.version 8.7
.target sm_80
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .f32 kernel_param_1
)
.reqntid 128
{
	.reg .pred 	%p<3>;
	.reg .b16 	%rs<2>;
	.reg .b64 	%rd<4>;
	.loc	1 108 0                         // decoding.py:108:0
$L__func_begin0:
// %bb.0:
	ld.param.b64 	%rd1, [kernel_param_0];
	// begin inline asm
	mov.u16 %rs1, 0x0;
	@!%p1 ld.global.b16 { %rs1 }, [ %rd1 + 8 ];
	// end inline asm
$L__BB0_1:                              // =>This Inner Loop Header: Depth=1
	@%p2 bra 	$L__BB0_1;
	ret;
$L__func_end0:
}
	.section	.debug_macinfo	{	}
"""


def test_a_kernel() -> None:
    found = read(KERNEL, STEPS)
    assert found.parameters == {"kernel_param_0": "u64", "kernel_param_1": "f32"}
    assert found.threads == 128
    assert found.widths == {"%p": 1, "%rs": 16, "%rd": 64}
    assert found.labels == {"$L__func_begin0": 0, "$L__BB0_1": 3, "$L__func_end0": 5}
    assert [instruction.text for instruction in found.code] == [
        "ld.param.b64 	%rd1, [kernel_param_0]",
        "mov.u16 %rs1, 0x0",
        "@!%p1 ld.global.b16 { %rs1 }, [ %rd1 + 8 ]",
        "@%p2 bra 	$L__BB0_1",
        "ret",
    ]
    assert [instruction.guard for instruction in found.code] == [
        None, None, Guard(Register("%p1"), True), Guard(Register("%p2"), False), None,
    ]  # fmt: skip
    assert found.code[2].operands == (Group((Register("%rs1"),)), Address(Register("%rd1"), 8))
    assert found.code[2].step is STEPS["ld.global.b16"]


@pytest.mark.parametrize(
    "text", ["wgmma.fence.sync.aligned", "add.sat.s32 %r1, %r2, %r3", "@%p1 add.rz.f32 %r1, %r2, %r3"]
)
def test_what_is_not_modelled_is_a_fault_before_anything_runs(text: str) -> None:
    """By the whole name: another rounding, another way to overflow is another instruction."""
    with pytest.raises(Fault) as fault:
        read(KERNEL.replace("ret;", f"ret;\n{text};"), STEPS)
    assert str(fault.value) == f"`{text}` is no instruction that is modelled"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%rd5", Register("%rd5")),
        ("_", Register("_")),
        ("-1", Number(-1)),
        ("0x10", Number(16)),
        ("4294967295U", Number(2**32 - 1)),
        ("0f3F800000", Number(0x3F800000)),
        ("global_smem", Symbol("global_smem")),
        ("$L__BB0_3", Symbol("$L__BB0_3")),
        ("[global_smem+512]", Address(Symbol("global_smem"), 512)),
        ("[ %r5 + 0 ]", Address(Register("%r5"), 0)),
        ("[%rd5+-16]", Address(Register("%rd5"), -16)),
        ("{%r1, 0}", Group((Register("%r1"), Number(0)))),
    ],
)
def test_operands(text: str, expected: object) -> None:
    assert operand(text) == expected
    assert operands(f"{text}, %r9") == (expected, Register("%r9"))


@pytest.mark.parametrize("text", ["a.b", "0.5", "1|2"])
def test_no_operand(text: str) -> None:
    with pytest.raises(Fault) as fault:
        operand(text)
    assert str(fault.value) == f"{text!r} is no operand that is modelled"


def test_every_instruction_is_tested_alone() -> None:
    tested = [name for module in TESTS for name in module.TESTED]
    assert sorted(tested) == sorted(STEPS)
    assert sum(len(family.STEPS) for family in FAMILIES) == len(STEPS)
