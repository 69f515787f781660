"""Where rows are looked at for the gate and made into shards, on all cores: `prepare`, `reading`, and their workers."""
