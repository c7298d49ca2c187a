import json
from pathlib import Path
from typing import Any

import pytest

from .program import run

GPU_A = 'module.gpu_nodes.aws_instance.gpu["gpu-a"]'
OPS = "module.ops_node.aws_instance.ops"
BUCKET = "module.weights.aws_s3_bucket.weights"


def change(address: str, kind: str, *actions: str, tags: dict[str, str] | None = None) -> dict[str, Any]:
    before = None if actions == ("create",) else {"id": "x", "tags_all": tags}
    return {"address": address, "mode": "managed", "type": kind, "change": {"actions": list(actions), "before": before}}


def plan(*changes: dict[str, Any], **members: Any) -> str:
    return json.dumps({"format_version": "1.2", "planned_values": {}, "resource_changes": list(changes), **members})


def gpu(*actions: str) -> dict[str, Any]:
    return change(GPU_A, "aws_instance", *actions, tags={"Name": "gpu-a", "coderack:role": "gpu"})


def guard(text: str, *options: str) -> tuple[int, str, str]:
    return run("fleet", "guard", *options, "-", stdin=text)


@pytest.mark.parametrize(
    ("entry", "loss"),
    [
        (gpu("delete"), f"{GPU_A}: the plan would destroy a GPU node"),
        (gpu("delete", "create"), f"{GPU_A}: the plan would replace a GPU node"),
        (gpu("create", "delete"), f"{GPU_A}: the plan would replace a GPU node"),
        (gpu("forget"), f"{GPU_A}: the plan would forget a GPU node"),
        (change("aws_instance.x", "aws_instance", "delete"), "aws_instance.x: the plan would destroy a GPU node"),
        *(
            (
                change("aws_instance.x", "aws_instance", "delete", tags={"coderack:role": role}),
                "aws_instance.x: the plan would destroy a GPU node",
            )
            for role in ("", "GPU", "spare")
        ),
        (
            {
                "address": "aws_s3_bucket.a",
                "type": "aws_s3_bucket",
                "change": {"actions": ["delete"], "before": {"bucket": "coderack-weights-2026"}},
            },
            "aws_s3_bucket.a: the plan would destroy the weights bucket",
        ),
        (change(BUCKET, "aws_s3_bucket", "delete"), f"{BUCKET}: the plan would destroy the weights bucket"),
        (change(BUCKET, "aws_s3_bucket", "delete", "create"), f"{BUCKET}: the plan would replace the weights bucket"),
        (
            change("aws_kms_key.stack", "aws_kms_key", "delete"),
            "aws_kms_key.stack: the plan would destroy a key without which what it encrypted, such as the weights, "
            "cannot be read",
        ),
    ],
)
def test_refuses_the_loss_of_a_gpu_node_or_the_weights(entry: dict[str, Any], loss: str) -> None:
    code, out, err = guard(plan(gpu("no-op"), entry))
    assert (code, out) == (1, f"{loss}\n")
    assert f"--allow '{entry['address']}'" in err


@pytest.mark.parametrize(
    "entry",
    [
        gpu("no-op"),
        gpu("create"),
        gpu("update"),
        change(OPS, "aws_instance", "delete", "create", tags={"coderack:role": "ops"}),
        change("module.network.aws_subnet.private", "aws_subnet", "delete"),
        change("aws_s3_bucket.logs", "aws_s3_bucket", "delete"),
        change("data.aws_ec2_instance_type.gpu", "aws_ec2_instance_type", "read"),
        change(BUCKET, "aws_s3_bucket", "update"),
        change(
            "module.weights.aws_s3_bucket_lifecycle_configuration.w", "aws_s3_bucket_lifecycle_configuration", "delete"
        ),
    ],
)
def test_lets_other_changes_pass(entry: dict[str, Any]) -> None:
    code, out, err = guard(plan(entry))
    assert (code, out, err) == (0, "the plan keeps all GPU nodes and the weights bucket\n", "")


def test_a_replaced_object_that_is_left_over_counts() -> None:
    assert guard(plan(gpu("delete") | {"deposed": "c0ffee01"}))[0] == 1


def test_a_deferred_loss_counts() -> None:
    deferred = [{"reason": "provider_config_unknown", "resource_change": gpu("delete")}]
    assert guard(plan(deferred_changes=deferred))[0] == 1


def test_what_is_allowed_by_its_full_address_may_go() -> None:
    text = plan(gpu("delete", "create"), change(BUCKET, "aws_s3_bucket", "delete"))
    code, out, err = guard(text, "--allow", GPU_A)
    assert code == 1
    assert f"{GPU_A}: the plan would replace a GPU node (allowed)" in out
    assert f"1 loss(es) that nobody allowed; change the plan, or say that it is meant: --allow '{BUCKET}'" in err
    assert guard(text, "--allow", GPU_A, "--allow", BUCKET)[0] == 0


@pytest.mark.parametrize("pattern", ["gpu-a", "module.gpu_nodes", "*", GPU_A.upper(), f"{GPU_A} "])
def test_an_allowance_is_no_pattern_and_a_misspelt_one_is_told(pattern: str) -> None:
    code, _, err = guard(plan(gpu("delete")), "--allow", pattern)
    assert code == 1
    assert f"--allow {pattern}: the plan loses nothing of this address" in err


def test_json_has_what_was_refused_and_allowed() -> None:
    text = plan(gpu("delete"), change(BUCKET, "aws_s3_bucket", "delete"))
    code, out, _ = guard(text, "--json", "--allow", BUCKET)
    report = json.loads(out)
    assert (code, report["schema"], report["holds"], report["allowed"]) == (
        1,
        "coderack.fleet-guard/1",
        False,
        [BUCKET],
    )
    assert report["refused"] == [{"address": GPU_A, "kind": "a GPU node", "action": "destroy"}]
    assert len(report["losses"]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 column 1 is not JSON"),
        ("[]", "no JSON plan of format 1.x"),
        ("{}", "no JSON plan of format 1.x"),
        ('{"format_version": "2.0", "planned_values": {}}', "no JSON plan of format 1.x"),
        ('{"format_version": "1.0", "values": {}}', "this is a state, not a plan"),
        (plan(errored=True), "planning ended with an error"),
        ('{"format_version": "1.2", "resource_changes": {}}', "resource_changes or deferred_changes is no list"),
        (plan({"address": "x", "type": "aws_instance"}), "a change cannot be read ('change')"),
        ('{"format_version": "1.2", "resource_changes": [7]}', "a change cannot be read ("),
        (plan(gpu("destroy")), "actions ['destroy'], wanted text and a list of no-op, create"),
        (plan(gpu()), "actions [], wanted text and a list of"),
        (plan(deferred_changes=[{}]), "a change cannot be read ("),
        (plan(change("a", "aws_instance", "delete") | {"type": 7}), "change of 'a' has type 7, "),
    ],
)
def test_what_is_no_whole_plan_is_2(text: str, message: str) -> None:
    code, out, err = guard(text)
    assert (code, out) == (2, "")
    assert err.startswith("coderack: plan: ")
    assert message in err


def test_a_plan_without_changes_holds() -> None:
    # Terraform leaves resource_changes out when there are none.
    assert guard('{"format_version": "1.2", "planned_values": {}}')[0] == 0


def test_reads_a_file_and_refuses_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan(gpu("no-op")))
    assert run("fleet", "guard", str(tmp_path / "plan.json"))[0] == 0
    assert run("fleet", "guard", str(tmp_path / "none.json"))[0] == 2
