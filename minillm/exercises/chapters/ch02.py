"""The exercises of chapter 2, *Text becomes tokens*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = ()
