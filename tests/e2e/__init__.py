"""A real server process, real gRPC on loopback, real signals."""
