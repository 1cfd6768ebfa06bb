"""What the lab, the benchmark and the command share: files that are whole or absent, progress, the machine."""
