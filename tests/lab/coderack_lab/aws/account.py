"""What holds for a whole account and region: encryption and metadata defaults, key pairs."""

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from .state import Record, table

METADATA_MEMBERS = ("HttpTokens", "HttpPutResponseHopLimit", "HttpEndpoint", "InstanceMetadataTags")
NO_PREFERENCE = ("no-preference", -1)


class AccountActions(EC2Response):
    def get_ebs_default_kms_key_id(self) -> ActionResult:
        return ActionResult({"KmsKeyId": self._defaults("ebs").get("key", "alias/aws/ebs")})

    def modify_ebs_default_kms_key_id(self) -> ActionResult:
        self._defaults("ebs")["key"] = self._get_param("KmsKeyId")
        return self.get_ebs_default_kms_key_id()

    def reset_ebs_default_kms_key_id(self) -> ActionResult:
        self._defaults("ebs").clear()
        return self.get_ebs_default_kms_key_id()

    def get_instance_metadata_defaults(self) -> ActionResult:
        return ActionResult({"AccountLevel": self._defaults("metadata")})

    def modify_instance_metadata_defaults(self) -> ActionResult:
        defaults = self._defaults("metadata")
        for member in METADATA_MEMBERS:
            value = self._get_param(member)
            if value in NO_PREFERENCE:
                defaults.pop(member, None)
            elif value is not None:
                defaults[member] = value
        return ActionResult({"Return": True})

    def describe_key_pairs(self) -> ActionResult:
        # moto switches the public key on and off in a table that all requests share: two at once spoil each other.
        pairs = self.ec2_backend.describe_key_pairs(self._get_param("KeyNames", []), self._filters_from_querystring())
        with_key = self._get_bool_param("IncludePublicKey", False)
        return ActionResult({"KeyPairs": [_key_pair(pair, with_key) for pair in pairs]})

    def _defaults(self, subject: str) -> Record:
        return table(self.ec2_backend, "account_defaults").setdefault(subject, {})


def _key_pair(pair: Any, with_key: bool) -> Record:
    return {
        "KeyPairId": pair.id,
        "KeyName": pair.key_name,
        "KeyType": pair.key_type,
        "KeyFingerprint": pair.key_fingerprint,
        "CreateTime": pair.create_time,
        "Tags": [{"Key": tag["key"], "Value": tag["value"]} for tag in pair.get_tags()],
        "PublicKey": pair.public_key.strip() if with_key else None,
    }
