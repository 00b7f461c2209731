"""Plots of chapter 8."""

from collections.abc import Callable

PLOTS: dict[str, Callable[[], str]] = {}
