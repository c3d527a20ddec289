"""Times collectives over ringcomm, gloo, NCCL and MPI: python -m ringcomm bench, as a script.

    python benchmarks/collectives.py all_reduce,reduce_scatter --backends ring,gloo -b 1K -e 64M

`--help` lists the options, which are nccl-tests', and the columns.
"""

from __future__ import annotations

import sys

from ringcomm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
