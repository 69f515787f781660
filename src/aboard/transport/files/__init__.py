"""Requests about files on a node: upload, download, trees, pieces between nodes, environments."""
