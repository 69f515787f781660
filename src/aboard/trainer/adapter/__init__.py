"""LoRA adapters: injected into the model on meta, so that sharding and loading treat them like other weights."""
