"""In service: the shapes of OpenAI's API, and what they mean to the engine."""
