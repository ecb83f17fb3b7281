"""How scores are told."""

from __future__ import annotations


def percent(value: float | None) -> str:
    """A fraction as a percentage; a dash where it is not defined."""
    return "-" if value is None or value != value else f"{100 * value:.2f}"
