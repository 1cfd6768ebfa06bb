"""`python -m relattn_lab`, the command `relattn`; for launchers, as in `torchrun --nproc-per-node 2 -m relattn_lab`."""

from relattn.cli import main

main()
