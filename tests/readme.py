"""The README's code in an environment with relattn's wheel alone: forward, backward, a cache, a graph or its refusal.

    python -I tests/readme.py [graphs]

Prints the backend that was taken.
"""

import re
import sys
from pathlib import Path

import torch

import relattn

README = Path(__file__).parent.parent / "README.md"
ROUNDING = 1e-5
"""Above what a graph's other order of float32 sums makes of 100 keys, far below what a wrong term makes."""


def main(graphs: bool) -> None:
    assert "site-packages" in relattn.__file__, f"relattn was found in {relattn.__file__}"
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(block.replace("print(", "str("), names)
    assert names["cache"].next_position == 31
    query, key, value, encoding = (names[name] for name in ("query", "key", "value", "encoding"))
    asked = {"encoding": encoding, "is_causal": True}
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    output = relattn.relative_attention(*leaves, **asked)
    output.square().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in [*leaves, *encoding.parameters()])
    if graphs:
        compiled = torch.compile(relattn.relative_attention, fullgraph=True)
        torch.testing.assert_close(compiled(*leaves, **asked), output, atol=ROUNDING, rtol=ROUNDING)
    else:
        for attend, given in ((relattn.relative_attention, leaves), (names["attention"], [torch.ones(1, 4, 512)])):
            try:
                torch.compile(attend, backend="eager")(*given)
            except Exception as error:
                assert f"got torch {torch.__version__}; expected 2.8 or later" in str(error), error
            else:
                raise AssertionError("this torch can trace relattn after all")
    print(relattn.explain(*leaves, **asked).chosen)


if __name__ == "__main__":
    main(sys.argv[1:] == ["graphs"])
