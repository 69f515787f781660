"""From rows to tokens and to which of them the loss is on: `encode` does it, `template` knows who speaks."""
