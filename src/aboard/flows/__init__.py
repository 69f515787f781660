"""One command per file: acts on what core decides. Nothing here prints."""
