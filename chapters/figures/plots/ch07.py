"""Plots of chapter 7."""

from collections.abc import Callable

PLOTS: dict[str, Callable[[], str]] = {}
