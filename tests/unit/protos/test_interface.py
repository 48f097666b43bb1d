"""Rules of the interface that the linter of protos does not know."""

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

from protos.v1 import admin_pb2, faults_pb2, generate_pb2, session_pb2, types_pb2

FILES = tuple(module.DESCRIPTOR for module in (types_pb2, session_pb2, generate_pb2, admin_pb2, faults_pb2))
SERVICES = {"Session", "Generate", "Admin", "Faults"}


def messages(file: FileDescriptor) -> list[Descriptor]:
    return list(file.message_types_by_name.values())


def test_services_when_listed_then_the_four_and_no_message_of_their_name() -> None:
    services = {name for file in FILES for name in file.services_by_name}
    names = {message.name for file in FILES for message in messages(file)}
    assert services == SERVICES
    assert not services & names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_package_when_read_then_versioned(file: FileDescriptor) -> None:
    assert file.package == "tenure.v1"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (types_pb2.SamplingParams, "temperature"),
        (types_pb2.SamplingParams, "max_tokens"),
        (types_pb2.SamplingParams, "top_k"),
        (types_pb2.SamplingParams, "top_p"),
        (types_pb2.SamplingParams, "seed"),
        (session_pb2.OpenRequest, "session_id"),
        (session_pb2.OpenRequest, "idle_timeout_s"),
        (generate_pb2.GenerateRequest, "session_id"),
        (generate_pb2.GenerateRequest, "turn_id"),
        (generate_pb2.GenerateRequest, "parent_turn_id"),
        (generate_pb2.GenerateRequest, "offset"),
        (generate_pb2.GenerateRequest, "priority"),
        (session_pb2.ForkRequest, "new_session_id"),
        (session_pb2.ForkRequest, "at_turn_id"),
        (session_pb2.ForkRequest, "at_length"),
        (session_pb2.TruncateRequest, "length"),
        (generate_pb2.AbortRequest, "session_id"),
        (generate_pb2.ResumeRequest, "session_id"),
        (generate_pb2.ResumeRequest, "held_ids_sha256"),
        (generate_pb2.TurnFinished, "session_len"),
        (generate_pb2.TurnFinished, "stop_string"),
    ],
)
def test_field_when_zero_differs_from_absent_then_presence_is_kept(message: type[Message], field: str) -> None:
    sent = message(**{field: message.DESCRIPTOR.fields_by_name[field].default_value})
    assert message.FromString(sent.SerializeToString()).HasField(field)
    assert not message().HasField(field)


@pytest.mark.parametrize("message", [types_pb2.TokenInput, generate_pb2.TokenDelta])
def test_token_ids_when_many_then_packed(message: type[types_pb2.TokenInput] | type[generate_pb2.TokenDelta]) -> None:
    field: FieldDescriptor = message.DESCRIPTOR.fields_by_name["token_ids"]
    assert field.is_packed
    assert len(message(token_ids=[1] * 1000).SerializeToString()) < 1010
