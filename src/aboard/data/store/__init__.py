"""Token shards on disk and all that vouches for them: `shards` reads them, `manifest` says what they are."""
