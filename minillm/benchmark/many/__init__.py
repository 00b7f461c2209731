"""What `python -m minillm.bench_batch` is made of: many requests at once, on one model.

workload.py         the requests: how many, how long, from which seed
decode_curve.py     N requests that decode at once, and what the roofline predicts for them
serve.py            a set of requests through the engine to the end; static_peer.py: through `generate` of transformers
step_figures.py     what the engine's own records of its steps say: waste, preemptions, work done twice
policy_alone.py     the same schedule without a model, for what is a matter of blocks and tokens only
check.py            the engine's tokens against those of every request alone
parts.py            what can be asked for;  job.py: the whole run;  plot.py: the curve as a picture
summary.py          medians, percentiles, ratios;  tables.py: for people
"""
