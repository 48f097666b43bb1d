"""What is told of a span beside its name and its time: the facts that matter, in words."""

import re
from collections.abc import Mapping

from services.cli.top_view.inert import tame
from services.client.traces import Span, SpanEvent, SpanLink
from telemetry.names import Attr, Relation, SpanName

_ID_DIGITS = 8
_DIGITS_MAX = 19
_TO_TURNS = (Relation.PREVIOUS_TURN, Relation.TURN)
"""Relations that say already that they lead to a turn."""
_PLURAL = re.compile(r"\b(token|page|row|state|turn|retraction|event)s\b")
_TOLD: Mapping[str, str] = {
    Attr.INPUT_TOKENS: "{} tokens in",
    Attr.SLOT_TOKENS: "{} from the slot",
    Attr.TREE_TOKENS: "{} from the tree",
    Attr.COMPUTED_TOKENS: "{} computed",
    Attr.OUTPUT_TOKENS: "{} tokens out",
    Attr.OUTCOME: "ended: {}",
    Attr.COMMITTED: "committed: {}",
    Attr.HISTORY_TOKENS: "history {} tokens",
    Attr.RETRACTIONS: "{} retractions",
    Attr.GRANTED: "{} pages granted",
    Attr.DONATED: "{} donated",
    Attr.RELEASED: "{} released",
    Attr.EVICTED: "{} evicted",
    Attr.FULL_PAGES: "{} pages",
    Attr.SWA_PAGES: "{} SWA pages",
    Attr.STATES: "{} states",
    Attr.ROWS: "{} rows",
    Attr.KV_TOKENS: "{} tokens of KV",
    Attr.SESSION_REASON: "{}",
    Attr.SESSION_TURNS: "{} turns",
    Attr.PHASE: "{}",
    Attr.STEP: "step {}",
    Attr.STEP_ROWS: "{} rows",
    Attr.STEP_TOKENS: "{} tokens",
    Attr.STEP_HOST_S: "host {} s",
    Attr.STEP_DEVICE_S: "device {} s",
    Attr.START: "from token {}",
    Attr.TOKENS: "{} tokens",
    Attr.SIGNAL: "{}",
    Attr.SOURCE: "by {}",
    Attr.RPC_STATUS: "gRPC status {}",
    Attr.ERROR_TYPE: "{}",
    Attr.EVENTS_LOST: "{} more events",
}
"""In this order; all others are in the exported spans."""
_PAIRS = ((Attr.FROM, Attr.TO), (Attr.SLOT_FROM, Attr.SLOT_TO))
_SILENT = {Attr.RETRACTIONS: "0", Attr.RPC_STATUS: "0"}
"""What is not told when it is this."""


def list_facts(attributes: Mapping[str, str]) -> list[str]:
    """As in `session 9 -> request 4`, `3 pages`, `64 tokens out`. Values of others are tamed."""
    moves = [
        f"{tame(attributes[source])} -> {tame(attributes[target])}"
        for source, target in _PAIRS
        if source in attributes and target in attributes
    ]
    told = (
        _tell(words, tame(attributes[key]))
        for key, words in _TOLD.items()
        if key in attributes and attributes[key] != _SILENT.get(Attr(key))
    )
    return list(dict.fromkeys((*moves, *told)))


def describe_event(event: SpanEvent, span: Span) -> str:
    """As in `+3.1 ms first_token` and its facts."""
    facts = list_facts(event.attributes)
    return f"+{format_ms(event.time_s - span.start_s)} {tame(event.name)}{': ' * bool(facts)}{', '.join(facts)}"


def describe_link(link: SpanLink) -> str:
    """As in `<- previous_turn t1  4bf92f35…/00f067aa…`. Enough digits for `tenure trace --id`."""
    is_to_turn = link.relation in _TO_TURNS
    leads_to = link.leads_to.removeprefix(f"{SpanName.TURN} ") if is_to_turn else link.leads_to
    words = f"{tame(link.relation)} {tame(leads_to)} " if leads_to else tame(link.relation)
    return f"<- {words} {shorten_id(link.trace_id)}/{shorten_id(link.span_id)}"


def describe_turn(span: Span) -> str:
    """As in `turn 7 of session s`."""
    turn_id, session_id = span.attributes.get(Attr.TURN_ID), span.attributes.get(Attr.SESSION_ID)
    of_session = "" if session_id is None else f" of session {tame(session_id)}"
    return f"turn {tame(turn_id or '')}{of_session}"


def shorten_id(hex_digits: str) -> str:
    return f"{tame(hex_digits[:_ID_DIGITS])}…"


def format_ms(seconds: float) -> str:
    """As in `0.021 ms`, `12.3 ms`, `1,234 ms` or `12.3 s`."""
    ms = max(0.0, seconds) * 1e3
    if ms < 0.0005:
        return "0 ms"
    if ms < 0.9995:
        return f"{ms:.3f} ms"
    if ms < 99.95:
        return f"{ms:.1f} ms"
    return f"{ms:,.0f} ms" if ms < 9999.5 else f"{ms / 1e3:,.1f} s"


def _tell(words: str, value: str) -> str:
    """A count has its thousands apart, and of one thing there is one."""
    if not (value.isascii() and value.isdecimal() and len(value) < _DIGITS_MAX):
        return words.format(value)
    told = words.format(f"{int(value):,}")
    return _PLURAL.sub(r"\1", told) if value == "1" else told
