"""Draws each change of owner of a slot or a lease: one span for all pools that went together."""

from engine.core.events import KvMoved
from engine.core.ownership import Move, Owner, OwnerKind, PoolKind
from telemetry.names import Attr, Relation, kv_span_name
from telemetry.spans.open_span import OpenSpan
from telemetry.spans.record import SpanContext, SpanStatus
from telemetry.spans.tracer import Tracer

DRAWN = frozenset((Move.PARK, Move.LEND, Move.RETURN, Move.PUBLISH, Move.DEMOTE, Move.RELEASE, Move.QUARANTINE))
"""Grants, donations and evictions are counted on turns and steps: there are as many of them as pages."""
_UNITS = {
    PoolKind.FULL: Attr.FULL_PAGES,
    PoolKind.SWA: Attr.SWA_PAGES,
    PoolKind.MAMBA: Attr.STATES,
    PoolKind.ROWS: Attr.ROWS,
}
_NAMED = (OwnerKind.REQUEST, OwnerKind.SESSION)


class Handover:
    """Neighbouring moves of the same kind between the same two owners, until they are drawn."""

    __slots__ = ("_key", "span")

    def __init__(
        self, tracer: Tracer, event: KvMoved, parent: SpanContext | None, before: SpanContext | None, now_ns: int
    ) -> None:
        """`parent`: the span that it is a part of. `before`: the one that held the units until now."""
        self._key = (event.move, event.source, event.target)
        self.span = OpenSpan.child(tracer, kv_span_name(event.move), parent, now_ns)
        self.span.link(before, Relation.PREVIOUS_HOLDER)
        self.span.attributes |= {
            Attr.MOVE: event.move,
            Attr.FROM: _name(event.source),
            Attr.TO: _name(event.target),
            Attr.STEP: event.step,
        }
        self.add(event)

    def takes(self, event: KvMoved) -> bool:
        return self._key == (event.move, event.source, event.target)

    def is_to(self, owner: Owner) -> bool:
        return self._key[2] == owner

    def is_of(self, owner: Owner) -> bool:
        """Whether it takes from or gives to that owner."""
        return owner in self._key[1:]

    def add(self, event: KvMoved) -> None:
        key = _UNITS[event.pool]
        so_far = self.span.attributes.get(key, 0)
        assert isinstance(so_far, int), f"{key} is a count"
        self.span.attributes[key] = so_far + len(event.pages)

    def end(self, tracer: Tracer, now_ns: int) -> None:
        is_lost = self._key[0] is Move.QUARANTINE
        message = "nobody held these units any more: they are out of circulation" if is_lost else ""
        tracer.end(self.span.end(now_ns, SpanStatus.ERROR if is_lost else SpanStatus.UNSET, message))


def _name(owner: Owner) -> str:
    return f"{owner.kind} {owner.name}" if owner.kind in _NAMED else str(owner.kind)
