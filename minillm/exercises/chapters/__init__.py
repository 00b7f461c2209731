"""The exercises of the book, a file per chapter: what each is called, what it stands for, and its hints."""
