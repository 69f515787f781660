"""Compute: every slot multiplies matrices and copies memory as fast as the others of its kind."""
