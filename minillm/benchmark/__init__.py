"""What `python -m minillm.bench` is made of: engines, each in a process of its own, that take turns.

plan.py             what is measured: lengths, contexts, batches, modes
engine.py           what an engine must do, and what it says about itself
ours.py, transformers_peer.py, llama_cpp_peer.py    the engines
llama_cpp_api.py    the library of llama.cpp, loaded and silenced
gguf_file.py        the same weights as a file for llama.cpp, quantized by its own quantizer
random_model.py     a model of a well-known shape with random weights
worker.py           the process that holds one engine;  remote.py: the handle by which it is asked
ceilings.py         what the machine can do at most, measured in the same run
peers.py            which engines are set beside ours, and their files
subject.py          the model that is measured;  job.py: the whole run, mode by mode
session.py          one mode from end to end;  agreement.py: do the engines compute the same?
turns.py            rounds in which all engines are measured, one after the other
watch.py            was the machine quiet?
summary.py          medians, ratios, shares of the ceilings
report.py           tables for people, JSON for programs
many/               many requests at once: `python -m minillm.bench_batch`
serving/            a server under many clients: `python -m minillm.bench_serve`
"""
