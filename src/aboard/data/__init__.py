"""From the user's files to token shards, and the gate that looks at them before accelerators are claimed.

intake/     what the user named  → rows
tokens/     rows                 → tokens and loss masks
store/      token shards on disk, and all that vouches for them
feed/       shards               → bins, and the order in which ranks get them
gate/       what is wrong with the data, as findings
workshop/   the processes that do all of this, on all cores, once
"""
