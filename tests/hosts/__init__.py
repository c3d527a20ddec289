"""Several hosts on one machine: a network between them, jobs on them, and faults in both.

    with Network(hosts=2, rate="1gbit", delay_ms=1) as network:
        job = network.start("train.py", ranks_per_host=2)
        job.hear(rank=3)            # what the rank's script gave to `report`
        network.cut(host=1)
        results = job.wait(60)      # of each rank: status, stdout, stderr, reports

A host of `Network` has what a machine of its own has: an address and a name that resolves to it,
shared memory, process numbers, a boot id. It needs root and namespaces; `missing` says what is not
there. A host of `Local` is no more than a value of RINGCOMM_HOSTID, and needs nothing.

| file | what |
|---|---|
| `namespaces.py` | a host: a process that keeps its namespaces, and entering them |
| `network.py` | the network between hosts: rates, delays, losses, cuts |
| `relay.c` | cables that take time; Linux's netem is missing in many kernels |
| `job.py` | ranks, or commands, on hosts: signals to them, what becomes of them |
| `report.py` | what a rank's script imports to tell the test something |
| `probe.py` | the script that measures goodput and round trips |
| `checks.py` | the script that checks every collective; `test_checks.py` runs it on hosts |
| `check_*.py` | its checks, by kind |
| `cases.py` | what they are made of: places, inputs, comparisons |

Nothing stays behind: a host's processes, devices and mounts exist as long as its keeper, which ends
when its standard input does, that is with the test, however that ends. Directories of tests that
were killed are removed by the next ones.
"""

from hosts.job import Job, Result
from hosts.network import Local, Network, missing

__all__ = ["Job", "Local", "Network", "Result", "missing"]
