"""The old name of `trainer`: records of older runs suggest `python3 -m aboard.train.trackers`."""
