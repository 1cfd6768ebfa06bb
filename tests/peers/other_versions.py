"""Which families of models `relattn.hf.patch` changes under the transformers that is installed, whichever it is.

    python -m tests.peers.other_versions

Of every case of tests/peers/cases: whether the patched model gives the original's output, is left with a reason, or is
not known to this transformers. Ends with 1 where a patched model gives anything else, or where
`relattn.hf.models.SINCE` tells something else. `python -m tests.hf_versions` writes the numbers into docs/hf.md.
"""

import collections

import torch
import transformers
from torch import Tensor

import relattn.hf
from relattn.hf.installed import FIRST, VERSION, release
from relattn.hf.models import SINCE, package
from tests import seeds
from tests.hf_versions import wanting
from tests.peers.cases import CASES
from tests.peers.cases.case import LENGTH, Case, drawn


def outcome(case: Case) -> str:
    """ "changed", "left: why", "unknown: why" or "wrong: how"."""
    seeds.start_torch(0)
    try:
        model = drawn(case.make(LENGTH))
    except ModuleNotFoundError as error:
        return f"{'unknown' if wanting(error) else 'wrong'}: {error}"
    inputs = case.inputs(LENGTH)

    def output() -> Tensor:
        copies = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        with torch.no_grad():
            return case.output(model(**copies), inputs)

    expected = output()
    try:
        relattn.hf.patch(model, strict=True)
        torch.testing.assert_close(output(), expected, rtol=1e-3, atol=1e-3)
    except Exception as error:  # whatever it is, it is what a user would see
        return f"{'left' if wanting(error) else 'wrong'}: {type(error).__name__}: {error}"
    families = {package(type(module)) for module in model.modules()}
    early = [one for one in families if release(SINCE.get(one, FIRST)) > release(VERSION)]
    return f"wrong: SINCE tells a later version for {', '.join(early)}" if early else "changed"


def main() -> int:
    transformers.utils.logging.set_verbosity_error()
    by_kind = collections.defaultdict(list)
    for name, case in CASES.items():
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
