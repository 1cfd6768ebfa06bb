"""Where queries and keys stand on every axis of a call, and what follows from an offset."""
