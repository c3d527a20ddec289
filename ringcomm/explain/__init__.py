"""Pictures of plans: a page that animates one, and drawings of its steps for slides.

`contributions` follows the plans that the executors carry out; `page` and `drawing` show what it
finds. `times` says when it happens on a simulated network, `beside` shows two plans on that clock.
`sums` has the sum that each chunk is, with its parentheses.
"""

from ringcomm.explain.contributions import History, follow

__all__ = ["History", "follow"]
