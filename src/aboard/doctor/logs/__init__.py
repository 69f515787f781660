"""Logs of any launcher, read line by line in bounded memory: the earliest cause, with its echoes under it.

`line_prefixes` strips prefixes off a line, `log_scanner` looks for known messages, `judge_log` decides.
"""
