"""`python -m relattn.cli`, the command `relattn`; for launchers, as in `torchrun --nproc-per-node 2 -m relattn.cli`."""

from relattn.cli import main

main()
