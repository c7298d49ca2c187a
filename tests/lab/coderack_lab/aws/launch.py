"""Launch templates and instance launches: what moto ignores of a template, and what it forgets of a launch."""

import copy
from typing import Any

from moto.core.responses import ActionResult
from moto.core.serialize import return_if_not_empty
from moto.ec2.responses import EC2Response

from .capacity import CapacityActions
from .placement import KIND as PLACEMENT_GROUPS
from .placement import unknown_group
from .state import Record, table

# moto takes these from the template by itself.
LEFT_TO_MOTO = {"ImageId", "InstanceType", "KeyName", "SecurityGroupIds", "SecurityGroups", "UserData"}
INHERITED_TAGS = ("instance", "volume")
IMAGE_SIZE_GIB = 8  # a disk without a size gets the image's; moto would refuse it


def overlay(template: Record, request: Record) -> Record:
    """Launch parameters that the template adds: the request wins, member by member in structures."""
    merged: Record = {}
    for member in template.keys() - LEFT_TO_MOTO - {"TagSpecifications"}:
        ours, theirs = template[member], request.get(member)
        merged[member] = {**ours, **(theirs or {})} if isinstance(ours, dict) else theirs or ours
    inherited = [spec for spec in template.get("TagSpecifications", []) if spec["ResourceType"] in INHERITED_TAGS]
    if inherited:
        merged["TagSpecifications"] = inherited + (request.get("TagSpecifications") or [])
    return merged


class LaunchActions(CapacityActions):
    # An empty Association element reads as "has a public address" and makes Terraform replace the instance.
    RESPONSE_KEY_PATH_TO_TRANSFORMER = {  # noqa: RUF012 - moto's own shape, read per class
        **EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER,
        "InstanceNetworkInterface.Association": return_if_not_empty,
    }

    def create_launch_template(self) -> ActionResult:
        response = super().create_launch_template()
        template_id = response.result["LaunchTemplate"]["LaunchTemplateId"]  # type: ignore[index]
        # moto files the template's own tags among the tags for instances, which reads back as a change in every plan.
        for version in self.ec2_backend.launch_templates[template_id].versions:
            specifications = version.data.get("TagSpecifications", [])
            version.data["TagSpecifications"] = [
                spec for spec in specifications if spec["ResourceType"] != "launch-template"
            ]
        return response

    def run_instances(self) -> ActionResult:
        if template := self.params.get("LaunchTemplate"):
            data = copy.deepcopy(self.ec2_backend._get_template_from_args(template).data)
            for member, value in overlay(data, self.params).items():
                self.params[member] = value
        mappings = copy.deepcopy(self._get_param("BlockDeviceMappings", []))
        for mapping in mappings:
            disk = mapping.get("Ebs", {})
            if disk and "SnapshotId" not in disk:
                disk.setdefault("VolumeSize", IMAGE_SIZE_GIB)
        if mappings:
            self.params["BlockDeviceMappings"] = mappings
        placement = self._get_param("Placement", {})
        group, reservation = placement.get("GroupName"), self._get_param("CapacityReservationSpecification", {})
        target = (reservation.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
        if group and group not in table(self.ec2_backend, PLACEMENT_GROUPS):
            raise unknown_group(group)
        if target:
            self.claim(target, int(self._get_param("MaxCount", 1)))

        response = super().run_instances()
        for instance in response.result.instances:  # type: ignore[attr-defined]
            instance.placement_group = group
            instance.placement.group_name = group or ""
            instance.placement.tenancy = placement.get("Tenancy", "default")
            instance.capacity_reservation_id = target
            instance.capacity_reservation_specification = reservation or {"CapacityReservationPreference": "open"}
            self._complete(instance)
        return response

    def monitor_instances(self) -> ActionResult:  # type: ignore[override]
        return self._set_monitoring("enabled")

    def unmonitor_instances(self) -> ActionResult:  # type: ignore[override]
        return self._set_monitoring("disabled")

    def _set_monitoring(self, state: str) -> ActionResult:
        chosen = self.ec2_backend.get_multi_instances_by_id(self._get_param("InstanceIds", []))
        for instance in chosen:
            instance.monitoring_state = state
        reports = [{"InstanceId": instance.id, "Monitoring": {"State": state}} for instance in chosen]
        return ActionResult({"InstanceMonitorings": reports})

    def _complete(self, instance: Any) -> None:
        """Records on a new instance what the request said and moto did not keep."""
        instance.disable_api_termination = bool(self._get_param("DisableApiTermination"))
        instance.maintenance_options = self._get_param("MaintenanceOptions") or {"AutoRecovery": "default"}
        if self._get_param("InstanceMarketOptions", {}).get("MarketType") == "capacity-block":
            instance.lifecycle = "capacity-block"
        # Groups given per interface are the instance's groups as well.
        instance.security_groups = instance.security_groups or list(instance.nics[0]._group_set)
        # A template without user data yields an empty text here, which would read as a change.
        instance.user_data = instance.user_data if str(instance.user_data or "") else None
        for mapping in self._get_param("BlockDeviceMappings", []):
            volume_id = instance.block_device_mapping[mapping["DeviceName"]].volume_id
            volume, asked = self.ec2_backend.volumes[volume_id], mapping.get("Ebs", {})
            volume.iops = asked.get("Iops") or volume.iops
            volume.throughput = asked.get("Throughput") or volume.throughput
