"""The exercises of chapter 6, *The decode loop*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = ()
