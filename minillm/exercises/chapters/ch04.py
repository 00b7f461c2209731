"""The exercises of chapter 4, *Prefill*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = ()
