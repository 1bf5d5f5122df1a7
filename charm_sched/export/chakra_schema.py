"""The messages of Chakra execution traces that are written, as classes of protobuf.

They are made from a table at run time: so any release of protobuf will do, and nothing has to be
generated. Field numbers are those of `schema/protobuf/et_def.proto` in github.com/mlcommons/chakra,
version 1.0.0 (package ``ChakraProtoMsg``); fields that are never written are left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

PACKAGE = "ChakraProtoMsg"
COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE = 4, 5, 6
NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
    "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip

Message: TypeAlias = Any
"""A message of protobuf, or its class: they are made at run time, so nothing is known of them."""
_Field = tuple[str, int, str]  # name, number, type
MESSAGES: dict[str, tuple[_Field, ...]] = {
    "AttributeProto": (
        ("name", 1, "string"),
        ("doc_string", 2, "string"),
        ("double_val", 3, "double in value"),
        ("int32_val", 7, "int32 in value"),
        ("int64_val", 9, "int64 in value"),
        ("uint64_val", 13, "uint64 in value"),
        ("bool_val", 27, "bool in value"),
        ("string_val", 29, "string in value"),
    ),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "repeated AttributeProto")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "NodeType"),
        ("ctrl_deps", 4, "repeated uint64"),
        ("data_deps", 5, "repeated uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("attr", 10, "repeated AttributeProto"),
    ),
}
"""Per message its fields; ``in value`` puts a field into the oneof of that name."""


@cache
def message_classes() -> dict[str, Message]:
    """Give the class of each message."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="charm_sched/et_def.proto", package=PACKAGE, syntax="proto3"
    )
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        kinds.value.add(name=name, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add(message, *field)
    pool = descriptor_pool.DescriptorPool()  # one of our own: a reader may have the same names
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


def _add(message: Message, name: str, number: int, kind: str) -> None:
    """Add a field to the description of a message."""
    repeated = kind.startswith("repeated ")
    plain, _, oneof = kind.removeprefix("repeated ").partition(" in ")
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if oneof:
        if not message.oneof_decl:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = 0
    if plain in MESSAGES or plain == "NodeType":
        field.type = field.TYPE_ENUM if plain == "NodeType" else field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{plain}"
    else:
        field.type = getattr(field, f"TYPE_{plain.upper()}")


__all__ = [
    "COMM_RECV_NODE", "COMM_SEND_NODE", "COMP_NODE", "NODE_TYPES", "Message", "message_classes",
]  # fmt: skip
