"""A subset of bash, for reading batch scripts without running them."""
