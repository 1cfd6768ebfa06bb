"""The command `relattn`: `main` is its console entry."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. Without the extra `lab` it says so in one sentence and exits with code 2."""
    try:
        from relattn.cli.app import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        print(
            f"error: the command needs the extra `lab` ({package} is not installed); "
            "in the clone: pip install '.[lab]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    app()
