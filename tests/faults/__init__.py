"""Faults at random moments, and what is seen of them; each campaign in a short and a long form.

    python -m pytest tests/faults          # a few minutes
    python -m pytest tests/faults --long   # two hours; records what it counts and times

| campaign | what happens |
|---|---|
| `test_kills.py` | a rank is killed while all are at work in any operation |
| `test_setup_deaths.py` | a rank dies while a group is made; all start again with the same store |
| `test_stops.py` | a rank stands still, for less than the time-out or for more |
| `test_injection.py` | each allocation, thread and system call of the library fails once |
| `test_full_memory.py` | there is too little shared memory, or files may not grow |
| `test_damaged_memory.py` | the memory that ranks share is overwritten while they are at work |
| `test_programs.py` | random programs, right and wrong, bit for bit against plain torch |
| `test_soak.py` | many operations, in memory and descriptors that stay as they were |
| `test_hosts.py` | ranks, hosts and the network between hosts fail; all who survive name them |
| `test_restarts.py` | torchrun restarts a job whose ranks die in different moments |

`crew.py` runs ranks that the test talks to and sends signals to; `traffic.py` is what they do,
`works_until.py` what ranks on several hosts do.
"""
