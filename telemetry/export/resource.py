"""Who it is that sends: the resource of all spans and metrics of this process."""

import uuid
from collections.abc import Mapping
from importlib.metadata import version
from urllib.parse import unquote

from opentelemetry.sdk.resources import Resource

from telemetry.export.variables import VariableError

SERVICE_NAME = "tenure"
"""Unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` has another one."""
_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"


def build_resource(environment: Mapping[str, str], instance_id: str | None = None) -> Resource:
    """The name and version of the service, this run of it (random without `instance_id`), the SDK, and what the
    variables add. Build it once: spans and metrics of one process have the same.

    Raises VariableError.
    """
    attributes: dict[str, str] = {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": version("opentelemetry-sdk"),
        "service.name": SERVICE_NAME,
        "service.version": version("tenure"),
        "service.instance.id": instance_id or str(uuid.uuid4()),
    }
    for variable in (_ATTRIBUTES, "OTEL_SERVICE_NAME"):
        if not environment.get(variable, "").isprintable():  # as bytes that are no UTF-8 come out
            raise VariableError(variable, "must be text that can be printed")
    attributes |= _read_attributes(environment.get(_ATTRIBUTES, ""))
    name = environment.get("OTEL_SERVICE_NAME", "").strip()
    if name:
        attributes["service.name"] = name
    return _OneResource(attributes)


class _OneResource(Resource):
    """The SDK looks the resource of every span up in a dict, and a Resource hashes all of itself each time."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        super().__init__(dict(attributes))
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)


def _read_attributes(text: str) -> dict[str, str]:
    """Of `key=value,key=value`, percent-encoded. Raises VariableError."""
    attributes: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise VariableError(_ATTRIBUTES, f"must be key=value,key=value, and {pair!r} is no such pair")
        attributes[unquote(key.strip())] = unquote(value.strip())
    return attributes
