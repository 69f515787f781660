"""The code that runs on a node: stdlib only, Python 3.9 and later, sent over the transport; nothing to install.

A transport starts bridge.main, which handles node requests itself. To start a run it forks the supervisor, which
outlives it. Imports are few and late on purpose: every check pays for them on every node.
"""
