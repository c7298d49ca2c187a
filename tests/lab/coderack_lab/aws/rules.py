"""Security group rules: moto forgets the description of a rule that names a group rather than an address range."""

from moto.ec2.models import security_groups
from moto.ec2.models.security_groups import SecurityGroupRule


class DescribedRule(SecurityGroupRule):
    @property
    def description(self) -> str | None:
        return self.ip_range.get("Description") or self.source_group.get("Description")


def install() -> None:
    security_groups.SecurityGroupRule = DescribedRule  # type: ignore[misc]
