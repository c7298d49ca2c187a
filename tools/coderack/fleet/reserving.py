"""Capacity blocks: what is on offer, what is held, and buying one exactly once.

EC2's PurchaseCapacityBlock has no client token (its whole input is DryRun, TagSpecifications, CapacityBlockOfferingId
and InstancePlatform), and an offering gets a new id whenever it is asked for, so neither makes a repeated call
harmless. Buying once rests on four things instead: the purchase carries a tag with the environment's name and a token;
a reservation with that tag is looked for before anything is bought; the intention to buy is on disk before the request
leaves; and the request is sent once, without the SDK's retries.
"""

import datetime
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from coderack.clients.aws import AwsError, errors
from coderack.fleet import ec2, files
from coderack.spec.checked import SpecError

ENV_TAG = "coderack:environment"
TOKEN_TAG = "coderack:purchase"  # noqa: S105 - a name
# States in which a block is paid for, or about to be.
_HELD = ("payment-pending", "pending", "scheduled", "active", "assessing", "delayed")
_PLATFORM = "Linux/UNIX"
_BLOCK = "capacity-block"


@dataclass(frozen=True)
class Offer:
    """One capacity block that can be bought now; `price` is for all of it, paid at once."""

    id: str
    instance_type: str
    count: int
    zone: str
    starts_at: datetime.datetime
    ends_at: datetime.datetime
    price: Decimal
    currency: str

    @property
    def hours(self) -> float:
        return (self.ends_at - self.starts_at).total_seconds() / 3600

    @property
    def price_per_node_hour(self) -> Decimal:
        return self.price / Decimal(str(self.hours * self.count))


@dataclass(frozen=True)
class Held:
    """A capacity reservation of the account; `ends_at` is None where it has no end."""

    id: str
    kind: str
    state: str
    instance_type: str
    zone: str
    count: int
    free: int
    starts_at: datetime.datetime | None
    ends_at: datetime.datetime | None
    env: str | None

    @property
    def counts(self) -> bool:
        """Whether it is there or coming."""
        return self.state in _HELD

    def left(self, now: datetime.datetime) -> datetime.timedelta | None:
        """Time until its end; None where it has none."""
        return None if self.ends_at is None else max(self.ends_at - now, datetime.timedelta(0))


def offers(client: Any, wish: Mapping[str, Any], zone: str | None) -> list[Offer]:
    """What EC2 offers for `wish` (members of DescribeCapacityBlockOfferings), the cheapest first. Raises AwsError."""
    with errors("DescribeCapacityBlockOfferings"):
        pages = client.get_paginator("describe_capacity_block_offerings").paginate(**wish)
        found = [_offer(record) for page in pages for record in page["CapacityBlockOfferings"]]
    return sorted(
        (one for one in found if zone in (None, one.zone)), key=lambda one: (one.price, one.starts_at, one.zone)
    )


def held(client: Any) -> list[Held]:
    """All capacity reservations of the region, the one that ends first at the top. Raises AwsError."""
    with errors("DescribeCapacityReservations"):
        pages = client.get_paginator("describe_capacity_reservations").paginate()
        found = [_held(record) for page in pages for record in page["CapacityReservations"]]
    last = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return sorted(found, key=lambda one: (not one.counts, one.ends_at or last, one.id))


def blocks_of(all_held: list[Held], env: str) -> list[Held]:
    """The blocks that are there or coming and were bought for `env`."""
    return [one for one in all_held if one.kind == _BLOCK and one.counts and one.env == env]


@dataclass(frozen=True)
class Intent:
    """A purchase that was about to be made; on disk from before the request until its result is."""

    token: str
    offer: str
    at: str

    def __str__(self) -> str:
        return f"purchase {self.token} of offering {self.offer}, begun {self.at}"


def intent_file(directory: Path) -> Path:
    return directory / ".reservation-intent.json"


def read_intent(directory: Path) -> Intent | None:
    path = intent_file(directory)
    if not files.is_there(path):
        return None
    try:
        return Intent(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        problem = f"cannot be read ({error}); look at `coderack fleet reservations`, then remove the file"
        raise SpecError(str(path), (problem,)) from error


def buy(client: Any, offer: Offer, env: str, directory: Path, now: datetime.datetime) -> Held:
    """Buy `offer` for `env`. `client` must not repeat requests.

    Raises AwsError; when it has no code there was no answer, the block may have been bought, and the intent stays on
    disk so that nobody buys a second one. A refusal with a code bought nothing and takes the intent away.
    """
    intent = Intent(secrets.token_hex(8), offer.id, now.isoformat(timespec="seconds"))
    files.replace(intent_file(directory), json.dumps(vars(intent), indent=2) + "\n")
    tags = [{"Key": ENV_TAG, "Value": env}, {"Key": TOKEN_TAG, "Value": intent.token}]
    try:
        with errors(f"PurchaseCapacityBlock {offer.id}"):
            answer = client.purchase_capacity_block(
                CapacityBlockOfferingId=offer.id,
                InstancePlatform=_PLATFORM,
                TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
            )
            return _held((answer.get("CapacityReservations") or [answer["CapacityReservation"]])[0])
    except AwsError as error:
        if error.code and not _may_have_bought(error.code):
            intent_file(directory).unlink()
        raise


def save(directory: Path, block: Held) -> Path:
    """Write the block as Terraform's variable `capacity`, and only then forget the intention to buy it."""
    path = reservation_file(directory)
    files.replace(path, json.dumps({"capacity": capacity(block)}, indent=2) + "\n")
    intent_file(directory).unlink(missing_ok=True)
    return path


def reservation_file(directory: Path) -> Path:
    return directory / "reservation.auto.tfvars.json"


def elsewhere(directory: Path, region: str, now: datetime.datetime) -> str | None:
    """Id and zone of a block in another region that the environment's file names and that has not ended.

    Blocks are looked for in one region only: without this, a run that asks another one would buy a second block.
    """
    path = reservation_file(directory)
    if not files.is_there(path):
        return None
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["capacity"]
        zone, ends_at = known["zone"], datetime.datetime.fromisoformat(known["ends_at"])
        gone = ends_at <= now or zone.startswith(region)
        return None if gone else f"{known['reservation_id']} in {zone}, until {known['ends_at']}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"is no block that this command wrote ({error}); look at it, and move it away to reserve another"
        raise SpecError(str(path), (problem,)) from error


def capacity(block: Held) -> dict[str, Any]:
    """The value of the stack's variable `capacity`."""
    ends = {"starts_at": block.starts_at, "ends_at": block.ends_at}
    return {
        "kind": "capacity_block",
        "reservation_id": block.id,
        "instance_type": block.instance_type,
        "zone": block.zone,
        "count": block.count,
        **{key: rfc3339(value) for key, value in ends.items() if value is not None},
    }


def rfc3339(time: datetime.datetime) -> str:
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _may_have_bought(code: str) -> bool:
    # AWS's own faults, after which the request may yet have gone through.
    return code in ("InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestTimeout") or (
        code.isdigit() and code.startswith("5")
    )


def _offer(record: Mapping[str, Any]) -> Offer:
    try:
        return Offer(
            id=record["CapacityBlockOfferingId"],
            instance_type=record["InstanceType"],
            count=record["InstanceCount"],
            zone=record["AvailabilityZone"],
            starts_at=record["StartDate"],
            ends_at=record["EndDate"],
            price=Decimal(record["UpfrontFee"]),
            currency=record["CurrencyCode"],
        )
    except (KeyError, InvalidOperation) as error:
        raise AwsError(f"DescribeCapacityBlockOfferings: an offering without a usable {error}") from error


def _held(record: Mapping[str, Any]) -> Held:
    return Held(
        id=record["CapacityReservationId"],
        kind=_BLOCK if record.get("ReservationType") == _BLOCK else "odcr",
        state=record["State"],
        instance_type=record["InstanceType"],
        zone=record.get("AvailabilityZone") or record.get("AvailabilityZoneId") or "?",
        count=record["TotalInstanceCount"],
        free=record.get("AvailableInstanceCount", 0),
        starts_at=record.get("StartDate"),
        ends_at=record.get("EndDate"),
        env=ec2.tags(record).get(ENV_TAG),
    )
