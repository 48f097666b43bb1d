"""Package `tenure.v1`. Everything beside the .proto files is written by `make proto`."""
