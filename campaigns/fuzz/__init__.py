"""Mutated files, and what reading them comes to: `python -m campaigns.fuzz --help`."""
