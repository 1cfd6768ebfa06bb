"""`python -m relattn.cli`, for launchers such as `accelerate launch -m relattn.cli compare`."""

from relattn.cli import main

main()
