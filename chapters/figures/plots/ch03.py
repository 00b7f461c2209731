"""Plots of chapter 3."""

from collections.abc import Callable

PLOTS: dict[str, Callable[[], str]] = {}
