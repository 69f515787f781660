"""Storage: the directories that a run needs exist, respond, have space, and are shared where they should be."""
