"""`python -m relattn`, the command `relattn`."""

from relattn.cli import main

main()
