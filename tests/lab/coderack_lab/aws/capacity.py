"""Capacity reservations and capacity blocks: slots that are counted, and refused when there are none left."""

import datetime

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response

from .state import Record, apply_tags, live_instances, new_id, now, table, with_tags

RESERVATIONS = "capacity_reservations"
OFFERINGS = "capacity_block_offerings"

BLOCK_STARTS = datetime.time(11, 30, tzinfo=datetime.UTC)  # as AWS's own blocks do
BLOCK_FEE_PER_INSTANCE_HOUR = 30.0  # USD; of the right size, nothing depends on it


class CapacityActions(EC2Response):
    def create_capacity_reservation(self) -> ActionResult:
        members = ("InstanceType", "InstancePlatform", "AvailabilityZone", "EndDate", "PlacementGroupArn")
        wanted = {member: self._get_param(member) for member in members}
        return self._reserve(
            int(self._get_param("InstanceCount")),
            **wanted,
            InstanceMatchCriteria=self._get_param("InstanceMatchCriteria", "open"),
            EndDateType=self._get_param("EndDateType", "unlimited"),
            EbsOptimized=self._get_param("EbsOptimized", False),
            EphemeralStorage=self._get_param("EphemeralStorage", False),
            Tenancy=self._get_param("Tenancy", "default"),
            ReservationType="default",
        )

    def describe_capacity_reservations(self) -> ActionResult:
        ids = self._get_param("CapacityReservationIds", []) or list(table(self.ec2_backend, RESERVATIONS))
        return ActionResult({"CapacityReservations": [self._current(self._reservation(one)) for one in ids]})

    def modify_capacity_reservation(self) -> ActionResult:
        reservation = self._reservation(self._get_param("CapacityReservationId"))
        if count := self._get_param("InstanceCount"):
            reservation["TotalInstanceCount"] = int(count)
        changes = {member: self._get_param(member) for member in ("EndDate", "EndDateType")}
        reservation.update({member: value for member, value in changes.items() if value})
        return ActionResult({"Return": True})

    def cancel_capacity_reservation(self) -> ActionResult:
        self._reservation(self._get_param("CapacityReservationId"))["State"] = "cancelled"
        return ActionResult({"Return": True})

    def describe_capacity_block_offerings(self) -> ActionResult:
        hours, count = int(self._get_param("CapacityDurationHours")), int(self._get_param("InstanceCount", 1))
        start = datetime.datetime.combine(now().date() + datetime.timedelta(days=1), BLOCK_STARTS)
        offering: Record = {
            "CapacityBlockOfferingId": new_id("cbr"),
            "InstanceType": self._get_param("InstanceType"),
            "InstanceCount": count,
            "AvailabilityZone": f"{self.region}a",
            "StartDate": start,
            "EndDate": start + datetime.timedelta(hours=hours),
            "CapacityBlockDurationHours": hours,
            "UpfrontFee": f"{hours * count * BLOCK_FEE_PER_INSTANCE_HOUR:.2f}",
            "CurrencyCode": "USD",
            "Tenancy": "default",
        }
        table(self.ec2_backend, OFFERINGS)[offering["CapacityBlockOfferingId"]] = offering
        return ActionResult({"CapacityBlockOfferings": [offering]})

    def purchase_capacity_block(self) -> ActionResult:
        offering_id = self._get_param("CapacityBlockOfferingId")
        offering = table(self.ec2_backend, OFFERINGS).get(offering_id)
        if offering is None:
            raise EC2ClientError(
                "InvalidCapacityBlockOfferingId.NotFound",
                f"The Capacity Block offering '{offering_id}' does not exist.",
            )
        copied = ("InstanceType", "AvailabilityZone", "StartDate", "EndDate", "Tenancy")
        return self._reserve(
            offering["InstanceCount"],
            **{member: offering[member] for member in copied},
            InstancePlatform=self._get_param("InstancePlatform"),
            InstanceMatchCriteria="targeted",
            EndDateType="limited",
            EbsOptimized=False,
            EphemeralStorage=False,
            ReservationType="capacity-block",
        )

    def claim(self, reservation_id: str, count: int) -> None:
        """Refuses a launch of `count` instances that the reservation cannot hold."""
        reservation = self._reservation(reservation_id)
        free = self._current(reservation)["AvailableInstanceCount"]
        if reservation["State"] != "active" or free < count:
            raise EC2ClientError(
                "ReservationCapacityExceeded",
                "The requested reservation does not have sufficient compatible and available capacity for this "
                f"request: {reservation_id} is {reservation['State']} with {free} free, {count} asked for.",
            )

    def _reserve(self, count: int, **members: object) -> ActionResult:
        reservation_id = new_id("cr")
        owner = f"arn:aws:ec2:{self.region}:{self.current_account}"
        reservation: Record = {
            "CapacityReservationId": reservation_id,
            "CapacityReservationArn": f"{owner}:capacity-reservation/{reservation_id}",
            "OwnerId": self.current_account,
            "CreateDate": now(),
            "State": "active",
            "TotalInstanceCount": count,
            **members,
        }
        table(self.ec2_backend, RESERVATIONS)[reservation_id] = reservation
        specifications = self._get_param("TagSpecifications", [])
        apply_tags(self.ec2_backend, reservation_id, "capacity-reservation", specifications)
        return ActionResult({"CapacityReservation": self._current(reservation)})

    def _reservation(self, reservation_id: str) -> Record:
        reservation = table(self.ec2_backend, RESERVATIONS).get(reservation_id)
        if reservation is None:
            raise EC2ClientError(
                "InvalidCapacityReservationId.NotFound", f"The Capacity Reservation '{reservation_id}' does not exist."
            )
        return reservation

    def _current(self, reservation: Record) -> Record:
        used = live_instances(self.ec2_backend, "capacity_reservation_id", reservation["CapacityReservationId"])
        free = reservation["TotalInstanceCount"] - len(used)
        return {**with_tags(self.ec2_backend, reservation, "CapacityReservationId"), "AvailableInstanceCount": free}
