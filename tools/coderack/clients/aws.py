"""Clients of the AWS API, made only when needed: boto3 is the extra `aws`, and its import takes a tenth of a second."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Nothing here waits longer than an operator would.
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
_ATTEMPTS = 3


class AwsError(Exception):
    """AWS could not be asked, or refused to answer: nothing is known. `code` is AWS's own, empty without an answer."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class NoRegion(AwsError):
    """Neither the input nor the operator's AWS configuration names a region."""


def client(service: str, region: str | None, *, attempts: int = _ATTEMPTS, signature: str | None = None) -> Any:
    """A boto3 client; credentials and endpoint come from the operator's own AWS configuration.

    `attempts` is 1 for what must not be sent twice, `signature` a version of AWS's signatures where it matters.
    Raises AwsError.
    """
    try:
        # What boto3.client returns, without the transfer manager for S3 that boto3 imports first.
        from botocore.config import Config  # noqa: PLC0415 - see above
        from botocore.session import get_session  # noqa: PLC0415
    except ImportError as error:
        message = f"boto3 cannot be imported ({error}); wanted to ask AWS: pip install 'coderack[aws]'"
        raise AwsError(message) from error
    # Other SDKs and Terraform take the region from here; boto3 looks only for AWS_DEFAULT_REGION and in the profile.
    region = region or os.environ.get("AWS_REGION")
    retries = {"mode": "standard", "total_max_attempts": attempts}
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries, signature_version=signature
    )
    with errors(f"{service} in {region or 'the configured region'}"):
        return get_session().create_client(service, region_name=region, config=config)


@contextmanager
def errors(what: str) -> Iterator[None]:
    """Turns what boto3 raises within into an AwsError that says `what` was tried, and what to do about it.

    What reads members of an answer belongs within too: a proxy's log-in page lacks all of them.
    """
    # Whoever has a client has botocore; whoever has not must be able to import this module.
    from botocore import exceptions as boto  # noqa: PLC0415
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    try:
        yield
    except boto.ClientError as error:
        answer = error.response.get("Error", {})
        code, message = answer.get("Code", "?"), " ".join(str(answer.get("Message", "")).split())
        raise AwsError(f"{what}: AWS answers {code}: {message}", code) from error
    except boto.NoRegionError as error:
        raise NoRegion(f"{what}: no region is known; give --region or set AWS_REGION") from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.TokenRetrievalError) as error:
        raise AwsError(f"{what}: {error}; log in to AWS first (AWS_PROFILE, aws sso login)") from error
    except boto.BotoCoreError as error:
        if type(error) is boto.HTTPClientError:
            # Its text repeats the header that could not be sent, and that may be the session token.
            cause = type(error.kwargs.get("error")).__name__
            message = f"the request cannot be sent ({cause}); look for stray characters in your AWS credentials"
            raise AwsError(f"{what}: {message}") from None
        raise AwsError(f"{what}: {error}") from error
    except (ResponseParserError, LookupError, TypeError) as error:
        seen = " ".join(str(error).split())[:200]
        message = f"the answer is not AWS's ({type(error).__name__}: {seen}); is a proxy or another service in between?"
        raise AwsError(f"{what}: {message}") from error
    except ValueError as error:
        # An endpoint that is no URL, or a credential_process that prints no JSON.
        message = f"your AWS configuration cannot be used ({error}); look at AWS_ENDPOINT_URL and your AWS profile"
        raise AwsError(f"{what}: {message}") from error
