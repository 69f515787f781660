"""The code that runs on a node: stdlib only, Python 3.9 and later, sent over the transport; nothing to install.

bridge.main is what a wire starts. It answers questions by itself and, when asked to hold a run, forks the
keeper, which outlives it. Imports are few and late on purpose: every check pays for them on every node.
"""
