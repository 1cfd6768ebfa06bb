"""The command `relattn-lab`."""
