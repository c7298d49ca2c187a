"""`coderack fleet check --live` and Ansible's inventory plugin amazon.aws.aws_ec2 ask the same emulator about the same
1,000 instances, in turn. Example: tests/bench/fleet_live.py
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from measure import REPOSITORY, Cost, program, run, verdict

REGION = "us-west-2"
PORT = 5688
IMAGE = "ami-0c0de12b00c0ffee1"
COLLECTION = "ansible_collections/amazon/aws/"
BUILD = REPOSITORY / ".build" / "bench"
FACTOR = 3.0
MOST_CPU_S = 0.5
# Without the tag it would list every instance of the account.
PLUGIN = """\
plugin: amazon.aws.aws_ec2
regions: [us-west-2]
hostnames: [instance-id]
filters: {"tag:project": bench, instance-state-name: running}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    collections = _collections()
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_EC2_METADATA_DISABLED": "true",
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_HOME": str(BUILD / "ansible"),
    }
    os.environ.update(environment)
    # Compiled once, like any installed program; this would have every run compile anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ours: list[Cost] = []
    theirs: list[Cost] = []
    with tempfile.TemporaryDirectory() as name, _emulator():
        directory = Path(name)
        _prepare(directory, options.instances)
        coderack = [program("coderack"), "fleet", "check", "--env", "bench", "--live"]
        ansible = [program("ansible-inventory"), "-i", "bench.aws_ec2.yml", "--list", "--output", "listing.json"]
        for _ in range(options.runs):
            ours.append(run(coderack, directory, environment))
            print(f"coderack fleet check --live: {ours[-1]}", flush=True)
            theirs.append(run(ansible, directory, environment))
            print(f"ansible-inventory, aws_ec2:  {theirs[-1]}", flush=True)
        _same_instances(directory, options.instances)
    factor = statistics.median(cost.wall_s for cost in theirs) / statistics.median(cost.wall_s for cost in ours)
    cpu = statistics.median(cost.cpu_s for cost in ours)
    return verdict(
        {
            f"at least {FACTOR:g} times as fast as the plugin (medians: {factor:.1f} times)": factor >= FACTOR,
            f"at most {MOST_CPU_S:g} s of own CPU (median: {cpu:.2f} s)": cpu <= MOST_CPU_S,
        }
    )


def _collections() -> Path:
    """The plugin's collection, from the wheel whose version and hash the project pins."""
    if not (BUILD / COLLECTION).is_dir():
        print("unpacking amazon.aws from the wheel of ansible/collections.lock ...", flush=True)
        lock = REPOSITORY / "ansible" / "collections.lock"
        BUILD.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-input", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "-d", str(BUILD / "wheels"), "-r", str(lock)], check=True)
        (wheel,) = (BUILD / "wheels").glob("ansible-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(BUILD, [name for name in archive.namelist() if name.startswith(COLLECTION)])
    return BUILD


@contextmanager
def _emulator() -> Iterator[None]:
    """The lab's AWS in a process of its own, so that its work is not counted as ours."""
    command = [sys.executable, "-m", "coderack_lab.aws.server", "--port", str(PORT)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests" / "lab")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline().startswith("AWS emulator listens"):
                sys.exit(f"the emulator did not start; is port {PORT} taken?")
            yield
        finally:
            process.terminate()


def _prepare(directory: Path, count: int) -> None:
    """Instances in the emulator, and an inventory and a plugin configuration about them."""
    ec2 = boto3.client("ec2", region_name=REGION)
    vpc = ec2.create_vpc(CidrBlock="10.80.0.0/16")["Vpc"]["VpcId"]
    zone = f"{REGION}a"
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.80.0.0/16", AvailabilityZone=zone)["Subnet"]["SubnetId"]
    begin = time.monotonic()
    tags = [{"Key": "coderack:role", "Value": "gpu"}, {"Key": "project", "Value": "bench"}]
    request = {"ImageId": IMAGE, "InstanceType": "m7i.2xlarge", "SubnetId": subnet, "MinCount": 1, "MaxCount": 1}
    specifications = [{"ResourceType": "instance", "Tags": tags}]
    # One call each, as Terraform makes them: EC2 pages by such calls, not by instances.
    records = [ec2.run_instances(**request, TagSpecifications=specifications)["Instances"][0] for _ in range(count)]
    print(f"{count} instances made in {time.monotonic() - begin:.1f} s", flush=True)
    (directory / "inventories" / "bench").mkdir(parents=True)
    nodes = [_node(number, record) for number, record in enumerate(records)]
    fleet = {"version": 1, "stack": "aws", "region": REGION, "nodes": nodes}
    (directory / "fleet.json").write_text(json.dumps(fleet), encoding="utf-8")
    run([program("coderack"), "fleet", "write", "--env", "bench", "fleet.json"], directory, {})
    (directory / "bench.aws_ec2.yml").write_text(PLUGIN, encoding="utf-8")


def _node(number: int, record: dict[str, Any]) -> dict[str, Any]:
    ops = number == 0
    return {
        "name": "ops" if ops else f"gpu-{number:04}",
        "role": "ops" if ops else "gpu",
        "address": record["InstanceId"],
        "private_address": record["PrivateIpAddress"],
        "instance_id": record["InstanceId"],
        "instance_type": record["InstanceType"],
        "image_id": IMAGE,
        "zone": record["Placement"]["AvailabilityZone"],
        "gpus": {"model": "none", "count": 0} if ops else {"model": "NVIDIA H100", "count": 8},
        "fabric": {"kind": "none" if ops else "efa", "devices": []},
    }


def _same_instances(directory: Path, count: int) -> None:
    """Both have looked at everything; a plugin that finds nothing would be fast."""
    listing = json.loads((directory / "listing.json").read_text(encoding="utf-8"))
    seen = len(listing["_meta"]["hostvars"])
    if seen != count:
        sys.exit(f"the plugin lists {seen} instances, wanted {count}")


if __name__ == "__main__":
    raise SystemExit(main())
