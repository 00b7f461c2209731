"""The exercises of chapter 7, *Choosing the next token*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = ()
