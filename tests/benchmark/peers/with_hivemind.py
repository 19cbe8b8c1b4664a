#!/usr/bin/env python3
"""Calls an expert of a hivemind server, a process on this machine, over
loopback, beside service_benchmark: a feed-forward layer 512-2048-512 with Adam.

    tests/benchmark/peers/with_hivemind.py forward/256 training/256 forward/1

A case is what is called, `training` being forward, backward and the update that
the server makes at each backward call, and the rows of a call. Results are rows
a second, or for one row the seconds of a call.
"""

import atexit
import contextlib
import functools

import timing
import torch
from hivemind.dht import DHT
from hivemind.moe import get_experts
from hivemind.moe.server import background_server

WIDTH = 512


@functools.lru_cache
def expert():
    """The expert, of a server that lives as long as this process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    server = stack.enter_context(background_server(
        expert_uids=["ffn.0"], expert_cls="ffn", hidden_dim=WIDTH,
        device="cpu", num_handlers=1, optim_cls=torch.optim.Adam))
    dht = DHT(initial_peers=server.addrs, start=True)
    stack.callback(dht.shutdown)
    return get_experts(dht, ["ffn.0"])[0]


def measure(case, arguments):
    torch.set_num_threads(1)  # the work is the server's
    what, rows = case.split("/")
    x = torch.randn(int(rows), WIDTH, requires_grad=what == "training")

    def forward():
        with torch.no_grad():
            expert()(x)

    def training():
        expert()(x).sum().backward()

    seconds = timing.seconds_of(forward if what == "forward" else training,
                                arguments.seconds)
    return {"rows/s": int(rows) / seconds, "us": 1e6 * seconds}


if __name__ == "__main__":
    timing.main(__doc__, measure)
