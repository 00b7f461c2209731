"""The machine below the engine: what it can do at most, and what a model asks of it."""
