"""The first screen of README.md, run as a stranger runs it: python first_screen.py README.md

Its first block of Python must print its first block of text. Nothing is imported here but the standard library, so that
it runs in an environment that holds relattn alone.
"""

import contextlib
import io
import re
import sys
import time
from pathlib import Path

FENCE = "```"


def block(text: str, language: str) -> str:
    """The first block in that language."""
    return re.search(rf"^{FENCE}{language}\n(.*?)^{FENCE}$", text, re.MULTILINE | re.DOTALL)[1]


def main(readme: str) -> None:
    """Run and compare."""
    text = Path(readme).read_text(encoding="utf-8")
    began, printed = time.perf_counter(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block(text, "python"), {})
    expected = block(text, "text")
    if printed.getvalue() != expected:
        sys.exit(f"{readme}: expected {expected!r}; got {printed.getvalue()!r}")
    print(f"the first screen runs as printed, in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
