"""AdamW, Adafactor, Muon and AdamW with 8-bit states, on sharded or replicated weights."""
