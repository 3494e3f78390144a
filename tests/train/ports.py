"""A free port on this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
