"""From the user's files to token shards, and the data check that runs before GPUs are claimed.

intake/            files, directories, hub data sets → rows
tokens/            rows → tokens and loss masks
store/             token shards on disk: manifests, indexes, hashes
sampling/          shards → packed sequences, and their order
quality/           the data check: problems of the data as findings
tokenize_workers/  the worker processes that prepare data on all cores, once
"""
