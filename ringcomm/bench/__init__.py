"""Measures collectives over "ring" and its peers: what `python -m ringcomm bench` does.

`options` says what can be measured, `cases` what a collective is; `values` fills buffers and finds
what is wrong in them; `contenders` calls the libraries; `sampling` takes the times, which `report`
and `plot` show. `timing` is the short way, for one all-reduce.
"""
