"""A fleet in the lab's AWS emulator, which runs inside the test process."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import boto3
import httpx
import pytest
from botocore import loaders

REGION = "us-west-2"
IMAGE = "ami-0c0de12b00c0ffee1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="session")
def emulator() -> Iterator[Any]:
    from coderack_lab.aws.server import start  # noqa: PLC0415 - moto takes a second, and most tests need no cloud

    running = start("127.0.0.1", 0)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def resetter(emulator: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=emulator.endpoint) as client:
        yield client


@pytest.fixture(scope="session")
def _api_descriptions() -> Iterator[None]:
    """botocore's descriptions of the services, read once: every client would read EC2's three megabytes anew."""
    read = loaders.create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", lambda _: read)
        yield


@pytest.fixture
def aws(emulator: Any, resetter: httpx.Client, _api_descriptions: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The emulator, fresh, as this process's AWS; returns its endpoint."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.endpoint)
    resetter.post("/moto-api/reset").raise_for_status()
    return str(emulator.endpoint)


def client(service: str) -> Any:
    return boto3.client(service, region_name=REGION)


@pytest.fixture
def ec2(aws: str) -> Any:
    return client("ec2")


def launch_fleet(ec2: Any) -> dict[str, Any]:
    """Two GPU nodes in reserved capacity and a placement group, and an ops node; returns their contract."""
    vpc = ec2.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
    zone = f"{REGION}a"
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.77.0.0/24", AvailabilityZone=zone)["Subnet"]["SubnetId"]
    ec2.create_placement_group(GroupName="coderack-gpu", Strategy="cluster")
    block = buy_block(ec2)
    gpu = {
        "Placement": {"GroupName": "coderack-gpu"},
        "CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": block["CapacityReservationId"]}
        },
    }
    reservation = {"id": block["CapacityReservationId"], "ends_at": block["EndDate"].isoformat()}
    h100, efa = {"model": "NVIDIA H100", "count": 8}, {"kind": "efa", "devices": []}
    nodes = [
        _launch(ec2, subnet, "p5.48xlarge", name, gpu)
        | {
            "role": "gpu",
            "gpus": h100,
            "fabric": efa,
            "placement_group": "coderack-gpu",
            "reservation": dict(reservation),
        }
        for name in ("gpu-a", "gpu-b")
    ]
    ops = _launch(ec2, subnet, "m7i.2xlarge", "ops", {})
    ops |= {"role": "ops", "gpus": {"model": "none", "count": 0}, "fabric": {"kind": "none", "devices": []}}
    return {"version": 1, "stack": "aws", "region": REGION, "nodes": [*nodes, ops]}


def buy_block(ec2: Any, env: str | None = None, days: int = 1) -> dict[str, Any]:
    """A capacity block of two p5.48xlarge, bought by hand (or for `env`, as the tool tags it)."""
    wish = {"InstanceType": "p5.48xlarge", "InstanceCount": 2, "CapacityDurationHours": 24 * days}
    offer = ec2.describe_capacity_block_offerings(**wish)["CapacityBlockOfferings"][0]
    tags = [{"Key": "coderack:environment", "Value": env}] if env else []
    specifications = [{"ResourceType": "capacity-reservation", "Tags": tags}] if tags else []
    bought: dict[str, Any] = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"],
        InstancePlatform="Linux/UNIX",
        TagSpecifications=specifications,
    )["CapacityReservation"]
    return bought


@contextmanager
def refusing(code: str, message: str, status: int = 403) -> Iterator[str]:
    """An EC2 that answers every request with an error, in EC2's own words; yields its address."""
    body = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>"
    with answering(body, status) as endpoint:
        yield endpoint


@contextmanager
def answering(body: str, status: int = 200) -> Iterator[str]:
    """Whatever stands at AWS's address and answers every request alike; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _launch(ec2: Any, subnet: str, kind: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    request = {"ImageId": IMAGE, "InstanceType": kind, "SubnetId": subnet, "MinCount": 1, "MaxCount": 1}
    record = ec2.run_instances(**request, **options)["Instances"][0]
    return {
        "name": name,
        "address": record["InstanceId"],
        "private_address": record["PrivateIpAddress"],
        "instance_id": record["InstanceId"],
        "instance_type": kind,
        "image_id": IMAGE,
        "zone": f"{REGION}a",
    }
