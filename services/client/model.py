"""What is served, and what a check found, as the client sees them."""

from dataclasses import dataclass

from protos.v1 import admin_pb2
from services.client.pools import KINDS


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model and the sizes it is served with."""

    name: str
    context_len: int
    vocab_size: int
    page_size: int
    pools: dict[str, int]
    """Kind → units in circulation."""
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One law of the books that does not hold."""

    law: str
    message: str
    kind: str = "conflict"
    """leak: the units are taken out of circulation, and the server goes on; conflict: it halts."""
    pool: str = ""
    units: tuple[int, ...] = ()


_FINDING_KINDS = {admin_pb2.FINDING_KIND_LEAK: "leak", admin_pb2.FINDING_KIND_CONFLICT: "conflict"}


@dataclass(frozen=True, slots=True)
class CheckReport:
    findings: tuple[Finding, ...]
    checks_run: int

    @property
    def is_clean(self) -> bool:
        return not self.findings


def decode_model(response: admin_pb2.GetModelResponse) -> ModelInfo:
    return ModelInfo(
        name=response.name,
        context_len=response.context_len,
        vocab_size=response.vocab_size,
        page_size=response.page_size,
        pools={KINDS.get(pool.kind, f"kind {pool.kind}"): pool.total for pool in response.pools},
        features=tuple(response.features),
    )


def decode_check(response: admin_pb2.CheckResponse) -> CheckReport:
    return CheckReport(tuple(map(_decode_finding, response.findings)), response.checks_run)


def _decode_finding(finding: admin_pb2.CheckFinding) -> Finding:
    return Finding(
        law=finding.law,
        message=finding.message,
        kind=_FINDING_KINDS.get(finding.kind, f"kind {finding.kind}"),
        pool=KINDS.get(finding.pool, ""),
        units=tuple(finding.units),
    )
