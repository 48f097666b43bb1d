"""One flag writes the traces of all transcripts anew. Read the difference before you keep it."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-transcripts", action="store_true", help="write the expected traces anew")
