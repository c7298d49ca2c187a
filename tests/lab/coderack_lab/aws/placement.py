"""Placement groups."""

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response

from .state import Record, apply_tags, live_instances, new_id, table, with_tags

KIND = "placement_groups"


def unknown_group(name: str) -> EC2ClientError:
    return EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


class PlacementActions(EC2Response):
    def create_placement_group(self) -> ActionResult:
        name, groups = str(self._get_param("GroupName")), table(self.ec2_backend, KIND)
        if name in groups:
            raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        group: Record = {
            "GroupName": name,
            "GroupId": new_id("pg"),
            "GroupArn": f"arn:aws:ec2:{self.region}:{self.current_account}:placement-group/{name}",
            "Strategy": self._get_param("Strategy", "cluster"),
            "PartitionCount": self._get_param("PartitionCount"),
            "SpreadLevel": self._get_param("SpreadLevel"),
            "State": "available",
        }
        groups[name] = group
        apply_tags(self.ec2_backend, group["GroupId"], "placement-group", self._get_param("TagSpecifications", []))
        return ActionResult({"PlacementGroup": with_tags(self.ec2_backend, group, "GroupId")})

    def describe_placement_groups(self) -> ActionResult:
        groups = table(self.ec2_backend, KIND)
        names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
        for name in names:
            if name not in groups:
                raise unknown_group(name)
        chosen = [
            with_tags(self.ec2_backend, group, "GroupId")
            for group in groups.values()
            if (not names or group["GroupName"] in names) and (not ids or group["GroupId"] in ids)
        ]
        return ActionResult({"PlacementGroups": chosen})

    def delete_placement_group(self) -> EmptyResult:
        name, groups = str(self._get_param("GroupName")), table(self.ec2_backend, KIND)
        if name not in groups:
            raise unknown_group(name)
        if live_instances(self.ec2_backend, "placement_group", name):
            raise EC2ClientError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use.")
        del groups[name]
        return EmptyResult()
