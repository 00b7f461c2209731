"""Plots of chapter 2."""

from collections.abc import Callable

PLOTS: dict[str, Callable[[], str]] = {}
