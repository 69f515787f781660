"""From the user's files to token shards, and the gate that looks at them before accelerators are claimed."""
