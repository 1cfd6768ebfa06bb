"""What relattn's pages of figures measure: `python -m measure --help`. It runs from a checkout, and is in no wheel."""
