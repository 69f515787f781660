"""`aboard sync`, and how other commands copy files to nodes that lack them, and back."""
