"""The code that the supervisor puts into a rank: files in its directory, which Python finds as `sitecustomize`."""
