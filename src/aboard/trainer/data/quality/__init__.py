"""The data check: finds problems of the data before GPUs are claimed, with one pure rule per file.

Each row is inspected once, where it is read, and flagged; flags are counted in `DataStatistics`, which add up, so that
workers can count separately. Rules judge the sum. Imports stay light: `aboard why` explains these findings without
numpy.
"""
