"""The command `relattn`: `main` is its console entry.

What the command `relattn-lab` shares with it stands here and in `commands`, `console`, `files`, `machine`, `stopped`.
"""

from __future__ import annotations

import sys
from importlib import import_module

REFUSED = 2
"""The exit code after an error that is reported in one sentence."""
STOPPED = 130
"""The exit code after Ctrl-C: 128 and the signal's number, as shells have it."""
EXTRA = ("typer", "rich", "safetensors")
"""The packages of the extra `cli`."""


def main() -> None:
    """Run the command."""
    run_app("relattn.cli.app")


def run_app(module: str) -> None:
    """Run the `app` of a module. Without the extra `cli` one sentence says so, and the exit code is 2."""
    try:
        import_module(module).app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        print(
            f"error: relattn: got a Python without {package}; expected the extra `cli`; "
            "install it: pip install '.[cli]' in a clone of relattn",
            file=sys.stderr,
        )
        raise SystemExit(REFUSED) from None
    except KeyboardInterrupt:  # while modules are loaded; the commands answer it themselves
        raise SystemExit(STOPPED) from None
