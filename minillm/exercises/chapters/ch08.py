"""The exercises of chapter 8, *Back to text*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = ()
