"""Which families of models `relattn.hf.patch` changes under the transformers that is installed, whichever it is.

    python -m tests.peers.other_versions

Of every case of tests/peers/cases: whether the patched model gives the original's output, is left with a reason, or is
not known to this transformers. Ends with 1 where a patched model gives anything else. docs/hf.md has the table.
"""

import collections
import importlib
import importlib.util
import sys
import types
from pathlib import Path

import torch
import transformers
from torch import Tensor

import relattn.hf
from relattn import UnsupportedError
from tests import seeds

FOLDER = Path(__file__).parent / "cases"


def cases() -> dict[str, object]:
    """Those of every file that this transformers has the models of."""
    package = types.ModuleType("tests.peers.cases")  # the package itself asks for all of them
    package.__path__ = [str(FOLDER)]
    sys.modules[package.__name__] = package
    found = {}
    for file in sorted(FOLDER.glob("[a-z]*.py")):
        if file.stem != "case":
            try:
                found |= importlib.import_module(f"{package.__name__}.{file.stem}").CASES
            except (ImportError, AttributeError) as error:
                print(f"{file.stem}: {error}")
    return found


def outcome(case) -> str:
    """ "changed", "left: why", "unknown: why" or "wrong: how"."""
    from tests.peers.cases.case import LENGTH, drawn

    seeds.start_torch(0)
    try:
        model = drawn(case.make(LENGTH))
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        return f"unknown: {error}"
    inputs = case.inputs(LENGTH)

    def output() -> Tensor:
        copies = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        with torch.no_grad():
            return case.output(model(**copies), inputs)

    try:
        expected = output()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return f"unknown: the original says {error}"
    try:
        report = relattn.hf.patch(model)
    except UnsupportedError as error:
        return f"left: {error}"
    try:
        torch.testing.assert_close(output(), expected, rtol=1e-3, atol=1e-3)
    except Exception as error:  # whatever it is, it is what a user would see
        return f"wrong: {type(error).__name__}: {error}"
    rest = {**report.left, **report.remains}
    return f"changed in part: {rest}" if rest else "changed"


def main() -> int:
    transformers.utils.logging.set_verbosity_error()
    by_kind = collections.defaultdict(list)
    for name, case in cases().items():
        said = outcome(case)
        by_kind[said.partition(":")[0]].append(name)
        if said != "changed":
            print(f"{name}: {said}")
    print(f"transformers {transformers.__version__}")
    for kind, names in by_kind.items():
        print(f"{kind}: {len(names)}: {', '.join(names)}")
    return int("wrong" in by_kind)


if __name__ == "__main__":
    raise SystemExit(main())
