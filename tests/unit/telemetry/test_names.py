"""Names as OpenTelemetry wants them: one spelling, one meaning, and none that is a namespace of another."""

import re

from telemetry.names import Attr, EventName, MetricName, Relation, SpanName

NAME = re.compile(r"[a-z][a-z0-9]*([._][a-z0-9]+)*")
CONVENTIONS = ("gen_ai.", "rpc.", "session.id", "error.type")


def test_attributes_when_listed_then_ours_or_of_the_conventions_and_no_name_is_another_ones_namespace() -> None:
    names = [attr.value for attr in Attr]
    assert all(name.startswith(("tenure.", *CONVENTIONS)) for name in names)
    assert all(NAME.fullmatch(name) for name in names)
    spaces = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    assert not spaces & set(names)


def test_names_when_listed_then_each_is_spelled_once() -> None:
    for table in (Attr, EventName, MetricName, Relation, SpanName):
        names = [member.value for member in table]
        assert len(names) == len(set(names))
        assert len(names) == len(table.__members__), f"{table}: two names of one value"
