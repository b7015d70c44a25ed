"""Statistics of columns by a pass over the data: `elasticdl analyze`.

Each range of records gives partial statistics (`column_summary`), which merge (`moments`,
`quantile_sketch`, `value_counts`). `run` cuts the data, and has processes read the ranges.
"""

FORMAT = "elasticdl statistics 1"
"""What a file of statistics says of itself."""
