"""The services that face the client and the operator: gRPC at the edge, the engine behind it."""
