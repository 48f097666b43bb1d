"""What went wrong on a server, as its client sees it."""

from dataclasses import dataclass

from protos.v1 import incidents_pb2


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that went wrong; fields as in the interface."""

    incident_id: str
    time_s: float
    """Seconds since 1970 by the server's clock."""
    kind: str
    message: str
    over_s: float | None
    """When it was over; None: it is not, or that is not known."""
    has_dump: bool


def decode_incident(info: incidents_pb2.IncidentInfo) -> Incident:
    return Incident(
        incident_id=info.incident_id,
        time_s=info.time_s,
        kind=info.kind,
        message=info.message,
        over_s=info.over_s if info.HasField("over_s") else None,
        has_dump=info.has_dump,
    )
