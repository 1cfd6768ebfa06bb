"""measure/triton_model.py: the loops of an assembled kernel, and what an instruction moves through L1."""

import os
import re

import pytest

model = pytest.importorskip("measure.triton_model", reason="Triton is a package for Linux")

SASS = """
        .headerflags    @"EF_CUDA_SM80"
forward_kernel:
.text.forward_kernel:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0030*/                   LDSM.16.M88.4 R8, [R60] ;
.L_x_2:
        /*0040*/                   HMMA.16816.F32.BF16 R16, R8, R4, R16 ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/              @UP2 BRA `(.L_x_3) ;
        /*0070*/                   HMMA.16816.F32.BF16 R20, R8, R6, R20 ;
.L_x_3:
        /*0080*/              @!P0 BRA `(.L_x_1) ;
        /*0090*/                   STS.64 [R61], R16 ;
.L_x_4:
        /*00a0*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
.L_x_5:
        /*00b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P5, [UR8], R4 ;
        /*00c0*/              @!P5 BRA `(.L_x_6) ;
.L_x_7:
        /*00d0*/             @!UP0 BRA `(.L_x_4) ;
        /*00e0*/                   EXIT ;
.L_x_6:
        /*00f0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P5, [UR8], R4 ;
        /*0100*/              @!P5 BRA `(.L_x_6) ;
        /*0110*/                   BRA `(.L_x_7) ;
        /*0120*/                   BRA `(.L_x_1) ;
.L_x_8:
        /*0130*/                   BRA `(.L_x_8) ;
"""
"""A loop without products, one with a loop in it, one with a wait that is repeated behind the end, and jumps there."""


def names_in_loops(sass):
    return [[name for name, _ in loop] for loop in model.loops_of(model.parsed(sass))]


def test_names_operands_and_labels_are_read():
    code = model.parsed(SASS)
    assert code[:3] == [
        ("IMAD.MOV.U32", " R1, RZ, RZ, c[0x0][0x28] "),
        (".L_x_0", ""),
        ("LDG.E.128", " R4, [R2.64] "),
    ]
    assert ("HGMMA.64x32x16.F32.BF16", " R24, gdesc[UR8], R24, gsb0 ") in code
    assert len(code) == SASS.count("/*") + SASS.count(":\n") - 2, (
        "the names of the kernel and its section are no labels"
    )


def test_the_outermost_loops_with_products_in_their_order():
    assert names_in_loops(SASS) == [
        ["LDSM.16.M88.4", "HMMA.16816.F32.BF16", "BRA", "BRA", "HMMA.16816.F32.BF16", "BRA"],
        ["HGMMA.64x32x16.F32.BF16", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "BRA", "BRA"],
    ]


@pytest.mark.parametrize("product", ["HMMA.16816", "HGMMA.64x64x16", "UTCHMMA"])
def test_every_kind_of_product_makes_a_loop_count(product):
    loop = f".L_x_0:\n /*0000*/ {product} R0 ;\n /*0010*/ BRA `(.L_x_0) ;\n"
    assert names_in_loops(loop) == [[product, "BRA"]]
    assert names_in_loops(re.sub("HMMA|HGMMA|UTCHMMA", "FFMA", loop)) == []


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("LDS", 4), ("LDS.64", 8), ("LDS.128", 16), ("LDS.U16", 2), ("LDS.S16", 2), ("LDS.U8", 1), ("STS", 4),
        ("STS.U8", 1), ("STS.128", 16), ("LDL", 4), ("LDL.LU.64", 8), ("STL.S16", 2), ("STL.64", 8),
        ("LDG.E", 4), ("LDG.E.U16", 2), ("LDG.E.64", 8), ("LDG.E.128.CONSTANT", 16), ("STG.E.128", 16),
        ("LDGSTS.E.BYPASS.128", 16), ("LDGSTS.E.BYPASS.LTC128B.128", 16), ("LDGDEPBAR", 0), ("DEPBAR.LE", 0),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", 4), ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", 4), ("ATOMS.OR", 4), ("REDUX", 0),
        ("LDSM.16.M88", 4), ("LDSM.16.M88.2", 8), ("LDSM.16.M88.4", 16), ("LDSM.16.MT88.4", 16), ("STSM.16.M88.4", 16),
        ("SHFL.BFLY", 4), ("SHFL.IDX", 4), ("LDTM.x64", 0), ("STTM.x32", 0), ("LDC.64", 0), ("LDCU.64", 0),
        ("FFMA", 0), ("HMMA.16816.F32.BF16", 0), ("BAR.SYNC.DEFER_BLOCKING", 0), (".L_x_2", 0),
    ],
)  # fmt: skip
def test_bytes_that_a_thread_moves(name, size):
    assert model.bytes_of(name) == size


ROW = 16 * 2
"""Bytes of a row of 16 numbers in bfloat16."""


@pytest.mark.parametrize(
    ("name", "operands", "tile", "warps", "size"),
    [
        ("HGMMA.64x64x16.F32.BF16", " R24, gdesc[UR8], R24, gsb0 ", 64, 4, (64 + 64) * ROW),
        ("HGMMA.64x64x16.F32.BF16", " R24, R4, gdesc[UR8], R24 ", 64, 4, 64 * ROW),
        ("HGMMA.64x128x16.F32.BF16", " R24, gdesc[UR8], RZ, !UPT ", 128, 8, 2 * (64 + 128) * ROW),
        ("UTCHMMA", " gdesc[UR12], gdesc[UR14], tmem[UR24], tmem[UR34], idesc[UR35], !UPT ", 64, 4, (64 + 64) * ROW),
        ("UTCHMMA", " gdesc[UR12], gdesc[UR14], tmem[UR24], tmem[UR34], idesc[UR35], UPT ", 128, 8, (128 + 64) * ROW),
        ("UTCHMMA", " tmem[UR25], gdesc[UR12], tmem[UR7], tmem[UR26], idesc[UR27], UPT ", 128, 8, 64 * ROW),
        ("HMMA.16816.F32.BF16", " R16, R8, R4, R16 ", 64, 4, 0),
        ("LDS.128", " R4, [R60] ", 64, 4, 0),
    ],
)
def test_bytes_that_a_product_reads_by_itself(name, operands, tile, warps, size):
    assert model.bytes_of_factors(name, operands, tile, warps) == size


def test_the_best_size_is_that_of_the_lowest_bound_per_pair(monkeypatch):
    call, sizes = object(), [model.candidates.Sizes(32, 4, 2), model.candidates.Sizes(64, 4, 2)]
    monkeypatch.setattr(model.candidates, "candidates", lambda kernel, given, arch: sizes)
    bounds = {32: model.Work(2.0, 10.0, 3.0), 64: model.Work(39.0, 8.0, 7.0)}
    monkeypatch.setattr(model, "work", lambda launch, given, capability, size, which: bounds[size.tile])
    launch = model.Launch(model.compiled_for, (), {})
    assert model.best(launch, call, 80) == (sizes[1], bounds[64]), "39 for four times the pairs of 10"
    bounds[64] = model.Work(8.0, 7.0, 41.0)
    assert model.best(launch, call, 80) == (sizes[0], bounds[32])


def test_the_reference_is_the_tensor_cycles_of_products_of_64_features():
    assert model.reference(model.FLASH["backward"], 80) * 64**2 == 5 * 64**3 / 1024


@pytest.mark.slow
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled")
@pytest.mark.parametrize("capability", [80, 90, 100, 120])
def test_the_products_of_a_compiled_kernel(capability):
    """Every product of 64 x 64 x 64 is in the assembled loop. k and v are copied once. Each of four warps reads them,
    or two products read them once, and q beside them.
    """
    from triton.backends.compiler import GPUTarget

    from measure.triton_compiled import CALLS, constants_of, kernels
    from relattn.backends.triton.candidates import Sizes
    from tests.triton.compiled import compiled_for

    call, size = CALLS["no table"](), Sizes(64, 4, 2)
    launch = kernels(call, capability)["forward"]
    constants, target = constants_of(launch, call, size), GPUTarget("cuda", capability, 32)
    compiled = compiled_for(target, launch.kernel, launch.given, constants, size.warps, size.stages, assembled=True)
    (loop,) = model.loops_of(model.instructions(compiled.asm["cubin"]))
    kinds = {90: "HGMMA.64x64x16", 100: "UTCHMMA"}
    steps = sum(name.startswith(kinds.get(capability, "HMMA.16816")) for name, _ in loop)
    assert steps == 2 * (64 // 16) * (1 if capability in kinds else 64 // 16 * 64 // 8 // 4)
    cycles = model.work(launch, call, capability, size, model.WITHIN)
    assert cycles.tensor == 2 * 64**3 / model.MULTIPLY_ADDS[capability]
    assert cycles.issue == len(loop)
    tiles = 2 + 3 if capability in kinds else 2 + 4 * 2
    assert tiles * 64 * 64 * 2 / model.BYTES <= cycles.l1 < 1.25 * tiles * 64 * 64 * 2 / model.BYTES


@pytest.mark.slow
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled")
@pytest.mark.parametrize(
    ("tables", "kernel", "products"),
    [
        ("relative keys", "queries, in order", 5), ("relative keys", "keys, in order", 11 / 2),
        ("relative keys", "tables, in order", 10 / 2), ("relative keys, a float mask", "mask", 4),
    ],
)  # fmt: skip
def test_a_step_of_two_tiles_counts_for_both(tables, kernel, products):
    """The products are those that docs/triton.md counts; a tile of a mask shares no half of a band with another."""
    from measure.triton_compiled import CALLS, kernels

    call = CALLS[tables]()
    size, cycles = model.best(kernels(call, 80)[kernel], call, 80)
    assert cycles.tensor == products * size.tile**2 * 64 / model.MULTIPLY_ADDS[80]
