"""IAM: the policies of AWS's own that the stack attaches, and conditions that moto cannot evaluate."""

import functools
import json
from typing import Any

from moto.iam import access_control, models
from moto.iam.access_control import IAMPolicyStatement, PermissionResult
from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy, IAMBackend

# moto brings all of AWS's policies or none; all of them cost seconds and memory at each start.
AWS_POLICIES = ("AmazonSSMManagedInstanceCore",)


class LenientStatement(IAMPolicyStatement):
    """Lets pass what a Deny with a condition may or may not mean.

    moto denies whatever it cannot evaluate: with "deny unless over TLS" nobody could write to a bucket any more.
    """

    def is_action_permitted(
        self,
        action: str,
        resource: str = "*",
        principal: str | None = None,
        incoming_condition_values: dict[str, str] | None = None,
    ) -> PermissionResult:
        denies_sometimes = self._statement.get("Effect") == "Deny" and self._statement.get("Condition")
        if denies_sometimes and not incoming_condition_values:
            return PermissionResult.NEUTRAL
        return super().is_action_permitted(action, resource, principal, incoming_condition_values)


@functools.cache
def _aws_policies() -> dict[str, Any]:
    every = json.loads(aws_managed_policies_data)
    return {name: every[name] for name in AWS_POLICIES}


def _init_aws_policies(backend: IAMBackend) -> list[AWSManagedPolicy]:
    return [
        AWSManagedPolicy.from_data(name, backend.account_id, backend.region_name, policy)
        for name, policy in _aws_policies().items()
    ]


def install() -> None:
    access_control.IAMPolicyStatement = LenientStatement  # type: ignore[misc]
    models.IAMBackend._init_aws_policies = _init_aws_policies  # type: ignore[method-assign,assignment]
