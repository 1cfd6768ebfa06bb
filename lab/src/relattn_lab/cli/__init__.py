"""The command `relattn-lab`: `main` is its console entry."""

from relattn.cli import run_app


def main() -> None:
    """Run the command."""
    run_app("relattn_lab.cli.app")
