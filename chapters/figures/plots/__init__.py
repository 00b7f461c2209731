"""The book's plots, a file per chapter: what each draws is arithmetic alone."""
