"""What a call does not have costs it nothing: its kernels are the same as if they could not do it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import relattn

pytest.importorskip("triton", reason="Triton is a package for Linux")

TERMS = {"softcap", "key_bias", "grad_key_bias", "added", "starts", "explicit_limits", "axes"}
"""What holds a cap, a key bias (sinks are one), a float mask, starts as tensors, explicit positions and other axes."""
KERNELS = ("forward", "backward", "keys, in order", "tables, in order")
PRINT_THEM = """
import json, sys
import relattn
from tests.triton.test_plain import code_of_plain_kernels
json.dump([relattn.__file__, code_of_plain_kernels()], sys.stdout)
"""


class Without(ast.NodeTransformer):
    """Takes the branches and loops of TERMS out of the kernels' functions, and counts them."""

    def __init__(self) -> None:
        self.taken = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Others than those of Triton stay."""
        return self.generic_visit(node) if "triton.jit" in map(ast.unparse, node.decorator_list) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """`if x.softcap is not None` becomes its `else`."""
        test = ast.unparse(node.test)
        if test.endswith(" is not None") and test.split(" ")[0].split(".")[-1] in TERMS:
            self.taken += 1
            return node.orelse
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST | None:
        """`for n in tl.static_range(len(x.axes))` goes."""
        if ast.unparse(node.iter) == "tl.static_range(len(x.axes))":
            self.taken += 1
            return None
        return self.generic_visit(node)


def code_of_plain_kernels() -> dict[str, str]:
    """The PTX for sm_80 of a call with relative keys, without what names the lines of the source."""
    from triton.backends.compiler import GPUTarget

    from measure.triton_compiled import CALLS, constants_of, kernels, untimed
    from tests.triton.compiled import compiled_for

    call, found = CALLS["relative keys"](), {}
    for name, launch in kernels(call, 80).items():
        if name in KERNELS:
            size = untimed(launch, call, 80)
            constants, target = constants_of(launch, call, size), GPUTarget("cuda", 80, 32)
            result = compiled_for(target, launch.kernel, launch.given, constants, size.warps, size.stages)
            code = re.sub(r"\.file.*|\.loc.*|//.*", "", result.asm["ptx"].split(".section")[0])
            found[name] = "\n".join(line for line in code.splitlines() if line.strip())
    return found


def printed_by(source: Path) -> dict[str, str]:
    """`code_of_plain_kernels` of the package in a folder."""
    path = os.pathsep.join([str(source), str(Path(__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": path, "TRITON_DISABLE_LINE_INFO": "1"}
    command = [sys.executable, "-c", PRINT_THEM]
    file, code = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    assert Path(file).is_relative_to(source), "the package of another place"
    return code


@pytest.mark.slow
def test_a_plain_call_is_compiled_as_if_there_were_nothing_else(tmp_path: Path) -> None:
    """Instruction by instruction: so it has the same registers, too."""
    package = Path(relattn.__file__).parent
    whole = printed_by(package.parent)
    assert set(whole) == set(KERNELS)
    assert all(".entry" in code for code in whole.values())
    shutil.copytree(package, tmp_path / "relattn")
    without = Without()
    for file in (tmp_path / "relattn/backends/triton").rglob("*.py"):
        file.write_text(ast.unparse(without.visit(ast.parse(file.read_text()))))
    assert without.taken >= 27
    assert printed_by(tmp_path) == whole
