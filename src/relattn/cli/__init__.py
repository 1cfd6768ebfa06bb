"""The command `relattn`: `main` is its console entry."""

from __future__ import annotations

import sys

REFUSED = 2
"""The exit code after an error that is reported in one sentence."""
STOPPED = 130
"""The exit code after Ctrl-C: 128 and the signal's number, as shells have it."""


def main() -> None:
    """Run the command. Without the extra `cli` it says so in one sentence and exits with code 2."""
    try:
        from relattn.cli.app import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        print(
            f"error: relattn: got a Python without {package}; expected the extra `cli`; "
            "install it: pip install '.[cli]' in a clone of relattn",
            file=sys.stderr,
        )
        raise SystemExit(REFUSED) from None
    except KeyboardInterrupt:  # while modules are loaded; the commands answer it themselves
        raise SystemExit(STOPPED) from None
