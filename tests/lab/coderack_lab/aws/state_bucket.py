"""What the lab's account holds from the beginning: the bucket of Terraform's state.

Elsewhere `make bootstrap` makes it, once. The lab's account is new every time, and a state in it ends with what it
describes.
"""

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

NAME = "coderack-lab-state"  # as inventories/lab/backend.hcl says
REGION = "us-west-2"


def make_state_bucket() -> None:
    """Make the bucket, or leave it as it is when this process has served before."""
    account = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    if NAME not in account.buckets:
        account.create_bucket(NAME, REGION)
        account.put_bucket_versioning(NAME, "Enabled")
