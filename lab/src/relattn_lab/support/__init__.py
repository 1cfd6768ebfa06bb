"""What the lab, the benchmark and the command share: files that are complete or absent, progress, the machine."""
