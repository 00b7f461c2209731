"""Plots of chapter 4."""

from collections.abc import Callable

PLOTS: dict[str, Callable[[], str]] = {}
