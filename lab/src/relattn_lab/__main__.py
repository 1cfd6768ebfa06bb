"""`python -m relattn_lab`, the command `relattn-lab`; for launchers: `torchrun --nproc-per-node 2 -m relattn_lab`."""

from relattn_lab.cli import main

main()
