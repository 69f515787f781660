"""Reads what the user named (files, directories, a hub data set) into rows, in any supported format."""
