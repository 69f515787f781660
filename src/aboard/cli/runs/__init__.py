"""What `launch` and `train` have in common: arguments, views, attached and detached runs."""
