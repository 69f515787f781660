"""`aboard report`: writes one self-contained page about a run, a comparison of runs, or a check."""
