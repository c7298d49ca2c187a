"""What the extension remembers, kept on moto's own backend object so that moto's reset clears it too."""

import datetime
import secrets
from typing import Any

from moto.ec2.utils import convert_tag_spec

Record = dict[str, Any]  # one API object, by the API's member names


def table(backend: Any, kind: str) -> dict[str, Record]:
    """The records of one kind in one region, by name or id."""
    records: dict[str, Record] = backend.__dict__.setdefault(f"coderack_{kind}", {})
    return records


def new_id(prefix: str) -> str:
    """An identifier of EC2's shape: prefix and 17 hexadecimal digits."""
    return f"{prefix}-0{secrets.token_hex(8)}"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def apply_tags(backend: Any, resource_id: str, resource_type: str, specifications: list[Record]) -> None:
    """Stores the tags that a request asks for on a new resource."""
    tags = convert_tag_spec(specifications).get(resource_type)
    if tags:
        backend.create_tags([resource_id], tags)


def with_tags(backend: Any, record: Record, id_member: str) -> Record:
    """The record with its present tags, which may have changed since it was made."""
    tags = backend.describe_tags(filters={"resource-id": [record[id_member]]})
    return {**record, "Tags": [{"Key": tag["key"], "Value": tag["value"]} for tag in tags]}


def live_instances(backend: Any, attribute: str, value: str) -> list[Any]:
    """Instances that still hold a place in the group or reservation named by `attribute`."""
    return [
        instance
        for instance in backend.all_instances()
        if instance.state not in ("shutting-down", "terminated") and getattr(instance, attribute, None) == value
    ]
