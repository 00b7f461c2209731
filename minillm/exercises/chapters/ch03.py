"""The exercises of chapter 3, *Inside the transformer*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = ()
