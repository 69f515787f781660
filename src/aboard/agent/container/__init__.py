"""Runs ranks in containers: the runtime's command, one unpacked image per node, clean-up."""
