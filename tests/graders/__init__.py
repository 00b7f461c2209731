"""Graders: for each exercise its cases, an oracle of plain loops, known wrong answers and other right ones.

Expectations never pass through the code that is graded, nor through the engine's own.
"""
