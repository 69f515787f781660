"""The gate: what is wrong with the data, told before accelerators are claimed. Pure rules, one idea a file.

A row is looked at once, where it is read, and leaves signs; signs are counted in a `Tally`, and tallies add up, so
that workers can count apart. Rules judge the sum. Kept light: `aboard why` tells these stories without numpy.
"""
