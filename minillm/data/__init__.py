"""Texts that come with the package: `held_text.txt` is what `minillm quality` measures models on."""
