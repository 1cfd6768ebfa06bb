"""Sample mutants of the core, and tell which the fast tests kill.

    python -m tests.mutants --seed 1 [--count 60] [--jobs 2]

A mutant is one operator, comparison, constant or dropped statement in a function of the core. It runs in a copy of the
tracked files, under build/mutants/SEED. The tests run in groups, those first that reach the changed file by the fewest
imports, and stop at the first failure. results.jsonl keeps a line for each mutant, so a run that was stopped goes on.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from tests import reach
from tests.versions import FAST

CORE = reach.ROOT / "src/relattn"
APART = ("hf", "keras", "cli", "convert", "backends/triton")
"""Outside the core, or run by an interpreter that the fast tests leave out."""
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Mult,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
GROUPS = (4, 24)
"""How many files of tests run first, and then; the last group has the others."""
SECONDS = 3600


class Mutant(NamedTuple):
    """A place in a file, what stands there, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str


def offsets(data: bytes, node: ast.AST) -> tuple[int, int]:
    """Where a node begins and ends in a file."""
    lines = list(accumulate(map(len, data.splitlines(keepends=True)), initial=0))
    assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None
    return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The mutants of one node, whose own parts stay."""
    one = copy.deepcopy(node)
    match one:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            one.op = OPERATORS[type(op)]()
            yield one
        case ast.Compare(ops=[op, *others]) if type(op) in COMPARISONS:
            one.ops = [COMPARISONS[type(op)](), *others]
            yield one
        case ast.BoolOp(op=op):
            one.op = ast.And() if isinstance(op, ast.Or) else ast.Or()
            yield one
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Assign() | ast.AugAssign() | ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all inside of it, without those of f-strings, whose places Python 3.11 does not tell."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.JoinedStr):
            yield from parts(inner)


def mutants_of(file: Path, root: Path = reach.ROOT) -> Iterator[Mutant]:
    """Every mutant of the functions of a file."""
    data = file.read_bytes()
    seen = set[tuple[int, str]]()
    for function in (node for node in ast.walk(ast.parse(data)) if isinstance(node, ast.FunctionDef)):
        for node in (node for statement in function.body for node in parts(statement)):
            for other in changed(node):
                start, end = offsets(data, node)
                after = f"({ast.unparse(other)})" if isinstance(node, ast.expr) else ast.unparse(other)
                if (start, after) not in seen:  # of a function within a function
                    seen.add((start, after))
                    line, before = data[:start].count(b"\n") + 1, data[start:end].decode()
                    yield Mutant(file.relative_to(root).as_posix(), line, start, end, before, after)


@cache
def every_mutant() -> list[Mutant]:
    files = sorted(CORE.rglob("*.py"))
    core = [file for file in files if not any(file.is_relative_to(CORE / part) for part in APART)]
    return [mutant for file in core for mutant in mutants_of(file)]


def draw(seed: str, count: int) -> list[Mutant]:
    """The same for a seed and a tree."""
    return random.Random(seed).sample(every_mutant(), count)


def apply(mutant: Mutant, tree: Path) -> None:
    file = tree / mutant.file
    text = file.read_bytes()
    file.write_bytes(text[: mutant.start] + mutant.after.encode() + text[mutant.end :])


def groups(mutant: Mutant) -> list[list[str]]:
    """The files of tests, nearest first."""
    steps = reach.steps([reach.ROOT / mutant.file])
    files = sorted((file for file in steps if reach.is_test(file)), key=lambda file: (steps[file], file))
    names = [file.relative_to(reach.ROOT).as_posix() for file in files]
    return [part for begin, end in pairwise([0, *GROUPS, len(names)]) if (part := names[begin:end])]


def made(folder: Path) -> Path:
    """A copy of the tracked files, with the kernels."""
    if folder.exists():
        shutil.rmtree(folder)
    for name in subprocess.check_output(["git", "-C", str(reach.ROOT), "ls-files"], text=True).splitlines():
        if (reach.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(reach.ROOT / name, folder / name)
    for library in (reach.ROOT / "src").rglob("_kernels.so"):
        (folder / library.relative_to(reach.ROOT)).symlink_to(library)
    return folder


def killed_by(mutant: Mutant, tree: Path) -> str | None:
    """The first test that fails; None where all pass."""
    source = (tree / mutant.file).read_bytes()
    apply(mutant, tree)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", FAST]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    try:
        for files in groups(mutant):
            try:
                done = subprocess.run(
                    [*command, *files], cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS
                )
            except subprocess.TimeoutExpired:
                return "time is up"
            if done.returncode not in (0, 5):  # 5: of these files no test is fast
                lines = done.stdout.splitlines()
                return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1])
    finally:
        (tree / mutant.file).write_bytes(source)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    folder = reach.ROOT / "build/mutants" / asked.seed
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    left = [mutant for mutant in draw(asked.seed, asked.count) if list(mutant) not in [each["mutant"] for each in done]]
    trees = [made(folder / str(number)) for number in range(asked.jobs)]

    def run(mutant: Mutant) -> None:
        tree, begin = trees.pop(), time.monotonic()
        killer = killed_by(mutant, tree)
        trees.append(tree)
        done.append({"mutant": mutant, "killer": killer, "seconds": round(time.monotonic() - begin)})
        with results.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(f"{len(done)}/{asked.count} {mutant.file}:{mutant.line}", killer or "SURVIVED", flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(run, left))
    alive = [each["mutant"] for each in done if each["killer"] is None]
    for file, line, _, _, before, after in alive:
        print(f"survived: {file}:{line}: {before!r} -> {after!r}")
    print(f"{asked.count - len(alive)} of {asked.count} killed")


if __name__ == "__main__":
    main()
