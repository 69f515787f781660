"""One verb a file: acts on what core decides. Nothing here prints."""
