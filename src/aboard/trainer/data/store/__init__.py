"""Token shards on disk: their manifest, index, files and hashes."""
