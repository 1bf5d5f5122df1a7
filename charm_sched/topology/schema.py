"""The JSON Schema of topology files, for completion and checks in editors.

It holds what a schema can say: keys, types, units, ranges. Names that must exist, unique names and
the graph itself are checked by the loader alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from charm_sched import units
from charm_sched.topology.compute import PROFILE_NUMBERS, PROFILE_REQUIRED, RATE_NUMBERS
from charm_sched.topology.conditions import BUILT_IN
from charm_sched.topology.costs import COST_NUMBERS
from charm_sched.topology.library import PROFILE_SCHEMA, PROFILE_VERSION
from charm_sched.topology.profiles import DIRECTIONS, DTYPES
from charm_sched.topology.spec import DEVICE_NUMBERS, LINK_NUMBERS, PAIRINGS, SCHEMA, VERSION

_TEXT = {"type": "string", "minLength": 1}
_NAME = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_+:./-]*$"}
_COUNT = {"type": "integer", "minimum": 1}
_PART = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}


def json_schema() -> dict[str, Any]:
    """Return the schema as a JSON value (draft 2020-12)."""
    section = {
        "parts": _list("part", "Instances of templates."),
        "devices": _list("device", "What computes."),
        "switches": _list("switch", "What forwards."),
        "links": _list("link", "What joins them; a link works in both directions."),
    }
    properties = {
        "schema": {"const": SCHEMA},
        "version": {"const": VERSION},
        "name": _NAME,
        "description": _TEXT,
        "tiers": {"type": "array", "items": _NAME, "minItems": 1, "uniqueItems": True},
        "profiles": {
            "type": "object",
            "additionalProperties": {"anyOf": [_ref("profile"), _TEXT]},
            "description": "By name: spelled out, or the name of a profile file beside this one.",
        },
        "kinds": {"type": "object", "additionalProperties": _ref("kind")},
        "templates": {
            "type": "object",
            "additionalProperties": _object({"description": _TEXT, **section}),
        },
        **section,
        "domains": _list("domain", "The hierarchy, where it is not to be found from the graph."),
        "assumptions": {"type": "array", "items": _TEXT},
        "costs": _costs(),
        "conditions": {"type": "object", "additionalProperties": _ref("condition")},
        "under": {
            "type": "array",
            "items": {"enum": list(BUILT_IN)},
            "description": "Conditions that hold without being asked for.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA}, version {VERSION}",
        **_object(properties, ("schema", "version", "name")),
        "$defs": _definitions(),
    }


def profile_schema() -> dict[str, Any]:
    """Return the schema of profile files as a JSON value (draft 2020-12)."""
    profile = _profile()
    head = {
        "schema": {"const": PROFILE_SCHEMA},
        "version": {"const": PROFILE_VERSION},
        "name": _NAME,
        "description": _TEXT,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{PROFILE_SCHEMA}, version {PROFILE_VERSION}",
        **profile,
        "properties": {**head, **profile["properties"]},
        "required": ["schema", "version", "name", *profile["required"]],
    }


def _definitions() -> dict[str, Any]:
    values = _link_values()
    ends = {"from": _ref("pattern"), "to": _ref("pattern"), "kind": _NAME}
    pairing = {"enum": list(PAIRINGS), "description": "How the ends of two ranges are paired."}
    return {
        "pattern": {
            **_NAME,
            "description": "A name; gpu0..7 stands for gpu0 to gpu7.",
        },
        "part": _object({"name": _ref("pattern"), "template": _NAME}, ("name", "template")),
        "device": _object(
            {
                "name": _ref("pattern"),
                "profile": _NAME,
                "memory": _quantity(units.SIZE, "The device's own."),
                "port": _quantity(units.BANDWIDTH, "Each way; the sum of its links by default."),
                "id": {**_TEXT, "description": "What the system calls it: PCI address, UUID."},
                "peer": {
                    "type": "boolean",
                    "description": "Whether others reach its memory; if not, the host copies.",
                },
                **_provenance(DEVICE_NUMBERS),
            },
            ("name", "profile"),
        ),
        "switch": _object(
            {
                "name": _ref("pattern"),
                "kind": _NAME,
                "id": {
                    **_TEXT,
                    "description": "What the system calls it: PCI address, RDMA device, interface.",
                },
            },
            ("name", "kind"),
        ),
        "kind": _object(values),
        "link": _object({**ends, "pairing": pairing, "count": _COUNT, **values}, tuple(ends)),
        "domain": {
            **_object(
                {
                    "name": _TEXT,
                    "devices": {"type": "array", "items": _ref("pattern")},
                    "domains": {"type": "array", "items": _ref("domain")},
                },
                ("name",),
            ),
            "minProperties": 2,
        },
        "profile": _profile(),
        "condition": _object(
            {
                "set": {"type": "array", "items": _TEXT, "minItems": 1,
                        "description": "E.g. links[upi].bandwidth=10 GB/s"},
                "source": _TEXT,
            },
            ("set",),
        ),
    }  # fmt: skip


def _link_values() -> dict[str, Any]:
    return {
        "bandwidth": _quantity(units.BANDWIDTH, "Of all flows together, per direction."),
        "reverse": _quantity(units.BANDWIDTH, "From `to` to `from`, where it differs."),
        "latency": _quantity(units.TIME, "Per crossing."),
        "flow_cap": _quantity(units.BANDWIDTH, "The most a single flow gets."),
        "ramp": {
            "description": "Under the condition ramp: the message size that gets half of the "
            "bandwidth, or the part by size.",
            "anyOf": [
                _quantity(units.SIZE, "Half of the bandwidth."),
                {"type": "object", "additionalProperties": _PART, "minProperties": 1},
            ],
        },
        "shared": {"type": "boolean", "description": "Half duplex."},
        **_provenance(LINK_NUMBERS),
    }


def _profile() -> dict[str, Any]:
    rate = _object(
        {
            "direction": {"enum": list(DIRECTIONS)},
            "head_dim": _COUNT,
            "causal": {"type": "boolean"},
            "dtypes": {"type": "array", "items": {"enum": list(DTYPES)}, "minItems": 1},
            "rate": _quantity(units.RATE, "Of the FLOPs that the mask leaves; long sequences."),
            "by_length": {
                "type": "object",
                "additionalProperties": _quantity(units.RATE, "Of so many queries and keys."),
                "minProperties": 1,
                "description": "Under the condition short_kernels, by the number of queries.",
            },
            **_provenance(RATE_NUMBERS),
        },
        ("direction", "head_dim", "causal", "dtypes", "rate"),
    )
    peak = {dtype: _quantity(units.RATE, "From the datasheet.") for dtype in DTYPES}
    numbers = (*(f"peak.{dtype}" for dtype in DTYPES), *PROFILE_REQUIRED, *PROFILE_NUMBERS)
    return _object(
        {
            "peak": {**_object(peak), "minProperties": 1},
            "efficiency": {
                **_PART,
                "description": "The part of the peak that is taken where no rate is given.",
            },
            "overhead": _quantity(units.TIME, "Per kernel call."),
            "memory_bandwidth": _quantity(units.BANDWIDTH, "To the device's own memory."),
            "memory": _quantity(units.SIZE, "Of a device for which nothing else is said."),
            "interference": {
                "type": "number",
                "minimum": 1,
                "maximum": 100,
                "description": "Under the condition interference: how many times as long a kernel "
                "takes while transfers cross its device.",
            },
            "rates": {"type": "array", "items": rate},
            **_provenance(numbers),
        },
        PROFILE_REQUIRED,
    )


def _costs() -> dict[str, Any]:
    money = r"^([0-9]+(\.[0-9]+)?|\.[0-9]+)\s*[A-Z]{3}/"
    return {
        **_object(
            {
                "price": {
                    "type": "string",
                    "pattern": f"{money}h$",
                    "description": "Of the whole machine per hour. E.g. 98.3 USD/h",
                },
                "power": _quantity(units.POWER, "Of the whole machine under load."),
                "electricity": {
                    "type": "string",
                    "pattern": f"{money}kWh$",
                    "description": "Where the price does not hold it. E.g. 0.12 USD/kWh",
                },
                **_provenance(COST_NUMBERS),
            }
        ),
        "minProperties": 1,
        "description": "What the machine costs to run; no part of its digest.",
    }


def _provenance(numbers: Sequence[str]) -> dict[str, Any]:
    """Return `assumed` and `source` for an entry with these numbers."""
    return {
        "assumed": {
            "description": "Which numbers here are assumed; true for all of them.",
            "anyOf": [
                {"type": "boolean"},
                {"type": "array", "items": {"enum": list(numbers)}},
            ],
        },
        "source": {
            "description": "Where the numbers come from: a text, or a text per number.",
            "anyOf": [_TEXT, _object(dict.fromkeys(numbers, _TEXT))],
        },
    }


def _quantity(dimension: units.Dimension, description: str) -> dict[str, Any]:
    names = "|".join(sorted(dimension.units, key=lambda unit: (-len(unit), unit)))
    return {
        "type": "string",
        "pattern": rf"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*({names})$",
        "description": f"{description} E.g. {dimension.example}",
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _list(name: str, description: str) -> dict[str, Any]:
    return {"type": "array", "items": _ref(name), "description": description}


def _object(properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        result["required"] = list(required)
    return result
