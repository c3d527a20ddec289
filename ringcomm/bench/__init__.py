"""Measures collectives over "ring" and its peers: what `python -m ringcomm bench` does.

`options` says what to measure, `cases` what a collective is; `values` fills buffers and finds what
is wrong in them; `contenders` calls the libraries; `sampling` takes the times, which `report` and
`plot` show.
"""
