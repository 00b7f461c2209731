"""The stubs as they were given out: what `minillm exercises reset` restores. Edit the files one folder up instead."""
