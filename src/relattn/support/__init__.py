"""What the lab, `measure` and the command share: files that are complete or absent, progress, the machine."""
