"""Hosts that run containers: Apptainer and rootless Podman for the ordinary user, and a small image for both."""
