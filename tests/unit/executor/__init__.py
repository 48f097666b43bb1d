"""The torch-free part of the executor."""
