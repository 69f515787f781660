"""The screens of init, trust and sync."""
