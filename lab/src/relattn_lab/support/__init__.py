"""What the whole lab uses: files that are complete or absent, and messages about progress."""
