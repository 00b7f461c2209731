"""What a model is, from what its files say about it: `minillm inspect`. Nothing is loaded, and no torch is imported
unless a GGUF file has divisors of rotary frequencies in it (Llama 3.1 and later), whose rule is worked out anew.

found.py        a model's name -> its raw description: parsed config, headers of its tensors, tokenizer files
stored.py       the tensors as they are stored: names, shapes, dtypes, bytes
outline.py      the architecture's numbers, also of a model that this engine does not run
expected.py     the tensors that a config asks for
parts.py        parameters by part
vocabulary.py   the tokenizer and its chat templates
unusual.py      what a plain Llama has not, in sentences
findings.py     all of it together, and whether this engine runs the model
report.py       all of it on a terminal, or as JSON
"""
