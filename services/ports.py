"""Ports that are bound once the model is loaded: whether they can be, asked before."""

import errno
import os
import socket

from services.config import ConfigError, join_address


def require_free(flag: str, host: str, port: int) -> None:
    """Binds it and lets it go again; 0 is any free one, and there is one. Raises ConfigError, by the flag.

    A host that has no address is left to those who listen there: not all names are the resolver's.
    """
    if not port:
        return
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError:
        return
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as those do: a connection that is over is no bar
        try:
            probe.bind(address)
        except OSError as error:
            raise not_bound(flag, join_address(host, port), error) from error


def not_bound(flag: str, address: str, cause: OSError) -> ConfigError:
    """What to say of an address that can not be bound."""
    if cause.errno in (None, errno.EADDRINUSE):
        return ConfigError(flag, f"{address} can not be bound; is it in use?")
    reason = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror or str(cause)  # below 0: the resolver's
    return ConfigError(flag, f"{address} can not be bound: {reason}")
