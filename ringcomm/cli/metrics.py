"""python -m ringcomm metrics: figures of this host's running groups, for Prometheus."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import threading

from ringcomm.arguments import number
from ringcomm.usage import INTERRUPTED, FailedError

_PORT = 9477


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Serves figures of this user's running jobs on this host to Prometheus, at "
        "http://ADDRESS:PORT/metrics: collectives, bytes, waits and memory of each rank. It only "
        "reads, and costs the jobs nothing. It ends with Ctrl-C."
    )
    parser.add_argument("--port", type=number(1), default=_PORT, help="(default: %(default)s)")
    parser.add_argument(
        "--address", default="127.0.0.1", help="(default: %(default)s, for this host alone)"
    )
    parser.add_argument("--once", action="store_true", help="print the figures and end")


def run(options: argparse.Namespace) -> int:
    """Serves the figures, or prints them. Returns the exit code."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise FailedError("it needs prometheus-client: pip install prometheus-client")
    import prometheus_client

    from ringcomm.live import running
    from ringcomm.metrics import GroupCollector

    registry = prometheus_client.CollectorRegistry()
    registry.register(GroupCollector(running))
    if options.once:
        sys.stdout.write(prometheus_client.generate_latest(registry).decode())
        return 0
    try:
        server, thread = prometheus_client.start_http_server(
            options.port, options.address, registry
        )
    except (OSError, OverflowError) as error:
        raise FailedError(f"{options.address}:{options.port} cannot be used: {error}") from None
    print(f"http://{options.address}:{options.port}/metrics", flush=True)
    try:
        _wait()
    except KeyboardInterrupt:
        return INTERRUPTED  # without a line: it is the usual end
    finally:
        server.shutdown()
        thread.join()
    return 0


def _wait() -> None:
    threading.Event().wait()
