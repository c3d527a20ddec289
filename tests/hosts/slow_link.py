"""Ranks that all-reduce 2 MiB in each of 20 steps; each reports what `stragglers` says."""

from __future__ import annotations

import time
from dataclasses import asdict

import torch

import ringcomm
from hosts.report import report

ringcomm.init()
gradients = torch.ones(1 << 19)
ringcomm.all_reduce(gradients)  # makes its buffers
ringcomm.stragglers()
for _ in range(20):
    time.sleep(0.02)
    ringcomm.all_reduce(gradients)
report([{**asdict(each), "text": str(each)} for each in ringcomm.stragglers(last=20)])
ringcomm.destroy_process_group()
