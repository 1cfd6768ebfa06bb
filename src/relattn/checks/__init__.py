"""The checks of what a caller gives, and the wording of every error: what came, what is expected, the way out."""
