"""What the keeper puts into a rank: three files, written beside its sockets, found by Python as `sitecustomize`."""
