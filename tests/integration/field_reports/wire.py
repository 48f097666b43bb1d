"""What the API has names for, read from its own descriptors, and what a model directory may ask of the server."""

from pathlib import Path

from google.protobuf.descriptor import Descriptor, FileDescriptor

from engine.executor.hf_config import open_hf_config
from engine.executor.model_config import ModelConfig
from engine.executor.models.registry import read_blueprint
from protos.v1 import admin_pb2, faults_pb2, generate_pb2, session_pb2, types_pb2
from tests.kit.tiny_tokenizer_json import JsonObject, write_json

FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR for module in (admin_pb2, faults_pb2, generate_pb2, session_pb2, types_pb2)
)
LLAMA: JsonObject = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}


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


def read_model(folder: Path, **changed: object) -> ModelConfig:
    """The model of a small Llama's directory with other values in its configuration. Raises UnsupportedModelError."""
    folder.mkdir(exist_ok=True)
    return read_blueprint(open_hf_config(write_json(folder / "model", {"config.json": {**LLAMA, **changed}}))).config
