"""Logs of runs that weren't ours, read line by line in bounded memory: the earliest cause, its echoes folded under it.

`said` takes prefixes off a line, `families` hold what is known of messages, `reader` looks for them, `judge` decides.
"""
