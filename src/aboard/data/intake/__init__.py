"""From what the user named (files, directories, a hub's data set) to rows, whatever their format: `sources`, `read`."""
