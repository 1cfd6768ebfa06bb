"""measure/triton_rotation.py: the instructions of an assembled kernel, and what one of them moves through L1."""

import pytest

rotation = pytest.importorskip("measure.triton_rotation", reason="Triton is a package for Linux")

SASS = """
        .headerflags    @"EF_CUDA_SM80"
forward_kernel:
.text.forward_kernel:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDS.128 R4, [R2.64] ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
        /*0030*/              @UP2 STS.64 [R61], R16 ;
"""


def test_instructions_are_read_and_labels_are_none():
    assert rotation.parsed(SASS) == ["IMAD.MOV.U32", "LDS.128", "BRA", "STS.64"]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("LDS", 4), ("LDS.64", 8), ("LDS.128", 16), ("LDS.U16", 2), ("LDS.S16", 2), ("LDS.U8", 1), ("STS", 4),
        ("STS.U8", 1), ("STS.128", 16), ("LDSM.16.M88", 4), ("LDSM.16.M88.2", 8), ("LDSM.16.MT88.4", 16),
        ("STSM.16.M88.4", 16), ("SHFL.BFLY", 4), ("SHFL.IDX", 4),
    ],
)  # fmt: skip
def test_bytes_that_a_thread_moves(name, size):
    assert rotation.bytes_of(name) == size
