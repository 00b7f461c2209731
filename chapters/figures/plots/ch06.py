"""Plots of chapter 6."""

from collections.abc import Callable

PLOTS: dict[str, Callable[[], str]] = {}
