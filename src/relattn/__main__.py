"""`python -m relattn`, the command `relattn`; also for launchers, as in `accelerate launch -m relattn compare`."""

from relattn.cli import main

main()
