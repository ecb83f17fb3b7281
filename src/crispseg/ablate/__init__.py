"""Tables of experiments: rows x data sets x seeds, each a training of its own, and what came of them side by side.

`table.py` reads a table, `plan.py` finds the distinct runs behind several of them, `runner.py` runs these, `store.py`
keeps what they gave. `statistics.py` takes means, spreads and paired differences, `speed.py` times the rows' models,
`report.py` and `plot.py` show it all.
"""
