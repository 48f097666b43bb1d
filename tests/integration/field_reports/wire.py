"""What the API has names for, read from its own descriptors."""

from google.protobuf.descriptor import Descriptor, FileDescriptor

from protos.v1 import admin_pb2, faults_pb2, generate_pb2, session_pb2, types_pb2

FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR for module in (admin_pb2, faults_pb2, generate_pb2, session_pb2, types_pb2)
)


def fields_sent(message: Descriptor = generate_pb2.GenerateRequest.DESCRIPTOR) -> set[str]:
    """Every field that a message can carry, those of the messages in it included."""
    names: set[str] = set()
    for field in message.fields:
        names.add(field.name)
        if field.message_type is not None:
            names |= fields_sent(field.message_type)
    return names


def method_names() -> set[str]:
    """Every call that the server answers."""
    return {method.name for file in FILES for service in file.services_by_name.values() for method in service.methods}


def names_with(names: set[str], *words: str) -> set[str]:
    """Those of the names that have one of the words in them, in whatever case."""
    return {name for name in names if any(word in name.lower() for word in words)}
