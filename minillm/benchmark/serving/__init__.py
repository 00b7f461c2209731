"""What `python -m minillm.bench_serve` is made of: a server under many clients, polite ones and others, from outside.

target.py           the server, and what it holds when it is at rest
asks.py             the requests, and what each gives a client that is alone
reader.py           a client that streams;  wire.py: connections of those that do what no library does
probe.py            how long /health takes, asked by another process
sustained.py        many clients for minutes;  slow.py: readers that do not read;  leaving.py: those that disconnect
fuzz.py             wrong bodies;  ending.py: SIGTERM under load;  overhead.py: what the server adds to a token
tables.py           for people, with what must hold
"""
