"""`make plan|provision|fleet|destroy|bootstrap` in a copy of the repository: order, refusals, and who is asked.

Terraform is the real one, on the stack for declared hosts, which needs neither cloud nor provider.
"""

import contextlib
import json
import os
import pty
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from coderack_lab.aws.server import Emulator

from .runner import REPOSITORY
from .test_baremetal import good_nodes

COPIED = ("Makefile", "pyproject.toml", "ansible", "inventories", "terraform", "tools", "tests/lab")
GPU_NODE = 'module.gpu_nodes.aws_instance.gpu["gpu-a"]'

# A plan in which Terraform wants to put another machine in a GPU node's place, cut to what tells so.
REPLACING_PLAN = {
    "format_version": "1.2",
    "terraform_version": "1.11.4",
    "applyable": True,
    "complete": True,
    "errored": False,
    "resource_changes": [
        {
            "address": GPU_NODE,
            "module_address": "module.gpu_nodes",
            "mode": "managed",
            "type": "aws_instance",
            "name": "gpu",
            "index": "gpu-a",
            "provider_name": "registry.terraform.io/hashicorp/aws",
            "change": {
                "actions": ["delete", "create"],
                "before": {"id": "i-0aaaaaaaaaaaaaaa1", "tags": {"Name": "gpu-a", "coderack:role": "gpu"}},
                "after": {"tags": {"Name": "gpu-a", "coderack:role": "gpu"}},
                "after_unknown": {"id": True},
            },
        }
    ],
}

# A Terraform that has made this plan, and notes when it is told to carry it out.
STAND_IN = "\n".join(
    [
        "#!/bin/sh",
        'case "$*" in',
        "  'version -json') echo '{{\"terraform_version\": \"1.11.4\"}}' ;;",
        "  *' show '*) cat '{plan}' ;;",
        '  *" plan "*) for word; do case "$word" in -out=*) touch "${{word#-out=}}" ;; esac; done ;;',
        "  *' apply '*) touch '{applied}' ;;",
        "esac\n",
    ]
)


@dataclass(frozen=True)
class Copy:
    """A copy of the repository in which environments can be made up."""

    root: Path

    @property
    def environment(self) -> Path:
        return self.root / "inventories" / "rack"

    def make(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Nobody sits at this one: no terminal, nothing on standard input."""
        return subprocess.run(
            ["make", "--no-print-directory", *arguments],
            cwd=self.root, env=environment(settings), stdin=subprocess.DEVNULL, start_new_session=True,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def make_at_a_terminal(
        self, *arguments: str, answer: str, meanwhile: Callable[[], object] = lambda: None
    ) -> tuple[int, str]:
        """Somebody sits there and types `answer` at the question, after `meanwhile` has happened.

        Returns exit code and what the screen showed.
        """
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.root)
            os.execvpe("make", ["make", "--no-print-directory", *arguments], environment({}))  # noqa: S606  the child itself
        screen, asked = "", False
        with contextlib.suppress(OSError), os.fdopen(terminal, "r+b", buffering=0) as handle:  # EIO: the other end left
            while part := handle.read(4096):
                screen += part.decode(errors="replace")
                if not asked and "Type the name" in screen:
                    meanwhile()
                    handle.write(f"{answer}\n".encode())
                    asked = True
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), screen

    def hosts(self) -> str:
        file = self.environment / "hosts.yml"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def state(self) -> bool:
        return (self.environment / "terraform.tfstate").exists()


def environment(settings: dict[str, str]) -> dict[str, str]:
    """This process's environment without what an outer make, Terraform or AWS set-up would add."""
    foreign = ("MAKE", "MFLAGS", "TF_", "AWS_", "YES", "ALLOW", "ENV", "ARGS", "CODERACK_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    mirror = {"TF_MIRROR": os.environ["TF_MIRROR"]} if "TF_MIRROR" in os.environ else {}
    return kept | mirror | settings


@pytest.fixture
def copy(terraform_binary: str, tmp_path: Path) -> Copy:
    """With an environment `rack` of two sound GPU nodes and an ops node, not protected."""
    for name in COPIED:
        source, target = REPOSITORY / name, tmp_path / name
        ignored = shutil.ignore_patterns("*.tfstate*", "hosts.yml", "secrets", ".terraform", "__pycache__")
        shutil.copytree(source, target, ignore=ignored) if source.is_dir() else shutil.copy2(source, target)
    (tmp_path / ".build").mkdir()
    (tmp_path / ".build" / "venv").symlink_to(sys.prefix)
    made = Copy(tmp_path)
    (made.environment / "group_vars").mkdir(parents=True)
    (made.environment / "env.mk").write_text("STACK := baremetal\nPROTECTED := no\n")
    (made.environment / "backend.hcl").write_text('path = "../../../inventories/rack/terraform.tfstate"\n')
    (made.environment / "terraform.tfvars").write_text(f"nodes = {json.dumps(good_nodes())}\n")
    return made


def test_provision_makes_the_inventory_and_a_second_run_changes_nothing(copy: Copy) -> None:
    first = copy.make("provision", "ENV=rack", YES="1")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "gpu-a.example.net" in copy.hosts()
    before = copy.hosts()
    second = copy.make("provision", "ENV=rack")  # nothing to change: nobody has to be asked
    assert second.returncode == 0, second.stdout + second.stderr
    assert "No changes" in second.stdout
    assert copy.hosts() == before


def test_plan_changes_nothing(copy: Copy) -> None:
    done = copy.make("plan", "ENV=rack")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Changes to Outputs" in done.stdout
    assert (copy.state(), copy.hosts()) == (False, "")


def test_fleet_alone_writes_the_inventory_again(copy: Copy) -> None:
    copy.make("provision", "ENV=rack", YES="1")
    before = copy.hosts()
    (copy.environment / "hosts.yml").unlink()
    shutil.rmtree(copy.root / ".build" / "rack")  # as in a colleague's clone, which has only the state
    done = copy.make("fleet", "ENV=rack")
    assert done.returncode == 0, done.stdout + done.stderr
    assert copy.hosts() == before


def test_without_a_terminal_nothing_is_made_unless_somebody_said_yes(copy: Copy) -> None:
    done = copy.make("provision", "ENV=rack")
    assert done.returncode == 2
    assert "no terminal to ask at; wanted: somebody who has read the plan" in done.stderr
    assert "Run this in a terminal, or with YES=1" in done.stderr
    assert (copy.state(), copy.hosts()) == (False, "")


def test_the_name_of_the_environment_is_the_yes(copy: Copy) -> None:
    code, screen = copy.make_at_a_terminal("provision", "ENV=rack", answer="rack")
    assert code == 0, screen
    assert "gpu-a.example.net" in copy.hosts()


@pytest.mark.parametrize("answer", ["yes", ""])
def test_any_other_answer_changes_nothing(copy: Copy, answer: str) -> None:
    code, screen = copy.make_at_a_terminal("provision", "ENV=rack", answer=answer)
    assert code == 2
    assert f'the answer was "{answer}"; wanted: rack. Nothing was changed.' in screen
    assert (copy.state(), copy.hosts()) == (False, "")


@pytest.mark.parametrize("target", ["provision", "destroy"])
def test_a_plan_made_meanwhile_is_not_the_one_that_was_agreed_to(copy: Copy, target: str) -> None:
    copy.make("provision", "ENV=rack", YES="1")
    variables, state = copy.environment / "terraform.tfvars", copy.environment / "terraform.tfstate"
    variables.write_text(variables.read_text().replace("10.20.0.11", "10.20.0.21"))
    before = state.read_bytes()

    def somebody_else_plans() -> None:
        variables.write_text(variables.read_text().replace("10.20.0.21", "10.20.0.31"))
        assert copy.make("plan", "ENV=rack").returncode == 0

    code, screen = copy.make_at_a_terminal(target, "ENV=rack", answer="rack", meanwhile=somebody_else_plans)
    assert code == 2
    assert "another run has planned rack since; wanted: one run at a time" in screen
    assert state.read_bytes() == before


def test_a_plan_is_its_makers_alone(copy: Copy) -> None:
    copy.make("plan", "ENV=rack")
    plans = list((copy.root / ".build" / "rack" / "terraform").glob("plan.*"))
    assert [stat.S_IMODE(plan.stat().st_mode) for plan in plans] == [0o600, 0o600]


def test_without_a_cloud_an_api_key_is_a_file_only(copy: Copy) -> None:
    done = copy.make("rotate-key", "ENV=rack", "NAME=table-qa")
    assert done.returncode == 0, done.stdout + done.stderr
    key = (copy.environment / "secrets" / "api-keys" / "table-qa").read_text().strip()
    assert len(key) == 40
    assert key not in done.stdout + done.stderr


@pytest.mark.parametrize("target", ["plan", "provision", "fleet", "drift", "host-keys", "rotate-key", "destroy"])
def test_an_unknown_environment_is_named(copy: Copy, target: str) -> None:
    done = copy.make(target, "ENV=racks")
    assert done.returncode == 2
    assert "ENV=racks is unknown; wanted one of: aws baremetal lab rack" in done.stderr


def test_what_terraform_refuses_leaves_the_inventory(copy: Copy) -> None:
    copy.make("provision", "ENV=rack", YES="1")
    before = copy.hosts()
    (copy.environment / "terraform.tfvars").write_text(f"nodes = {json.dumps(good_nodes()[1:])}\n")
    done = copy.make("provision", "ENV=rack", YES="1")
    assert done.returncode == 2
    assert "nodes has 1 of role gpu [gpu-b]; declare an even number" in " ".join(done.stderr.replace("│", " ").split())
    assert copy.hosts() == before


def test_a_reservation_file_is_among_the_variables(copy: Copy) -> None:
    (copy.environment / "reservation.auto.tfvars.json").write_text('{"hcas_per_node": 4}')
    done = copy.make("plan", "ENV=rack")
    assert done.returncode == 2
    assert "wanted 4 in fabric.devices" in " ".join(done.stderr.replace("│", " ").split())


def test_a_cli_configuration_that_is_not_there_does_no_harm(copy: Copy) -> None:
    done = copy.make("plan", "ENV=rack", TF_MIRROR="/nonexistent", TF_CLI_CONFIG_FILE="/nonexistent/terraformrc")
    assert done.returncode == 0, done.stderr
    assert "CLI configuration" not in done.stdout + done.stderr


def stand_in(copy: Copy, plan: object) -> dict[str, str]:
    """Settings for make with a Terraform that has made this plan."""
    file, program = copy.root / "plan.json", copy.root / "terraform-stand-in"
    file.write_text(json.dumps(plan, separators=(",", ":")), encoding="utf-8")
    program.write_text(STAND_IN.format(plan=file, applied=copy.root / "applied"))
    program.chmod(0o755)
    return {"TERRAFORM": str(program)}


def test_a_plan_that_replaces_a_gpu_node_is_not_applied(copy: Copy) -> None:
    done = copy.make("provision", "ENV=rack", YES="1", **stand_in(copy, REPLACING_PLAN))
    assert done.returncode == 2
    assert GPU_NODE in done.stdout + done.stderr
    assert "make provision ENV=rack ALLOW='<address> …'" in done.stderr
    assert not (copy.root / "applied").exists()


def test_a_replacement_that_is_named_is_applied(copy: Copy) -> None:
    done = copy.make("provision", "ENV=rack", f"ALLOW={GPU_NODE}", YES="1", **stand_in(copy, REPLACING_PLAN))
    assert (copy.root / "applied").exists(), done.stdout + done.stderr


def test_a_plan_that_cannot_be_read_is_not_applied(copy: Copy) -> None:
    done = copy.make("provision", "ENV=rack", YES="1", **stand_in(copy, "no plan"))
    assert done.returncode == 2
    assert not (copy.root / "applied").exists()


@pytest.fixture
def provisioned(copy: Copy) -> Copy:
    done = copy.make("provision", "ENV=rack", YES="1")
    assert done.returncode == 0, done.stdout + done.stderr
    return copy


def test_drift_is_told_from_agreement(provisioned: Copy) -> None:
    agreed = provisioned.make("drift", "ENV=rack")
    assert agreed.returncode == 0, agreed.stdout + agreed.stderr
    hosts = provisioned.environment / "hosts.yml"
    hosts.write_text(provisioned.hosts().replace("10.20.0.11", "10.20.0.99"), encoding="utf-8")
    drifted = provisioned.make("drift", "ENV=rack")
    assert drifted.returncode == 2
    assert "10.20.0.99" in drifted.stdout + drifted.stderr


def outputs(copy: Copy) -> list[str]:
    return list(json.loads((copy.environment / "terraform.tfstate").read_text(encoding="utf-8"))["outputs"])


def test_an_environment_is_not_destroyed_unless_its_folder_says_that_it_may_be(provisioned: Copy) -> None:
    attempts: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
        ("PROTECTED := yes\n", (), {}),
        ("PROTECTED := nope\n", (), {}),
        ("", (), {}),
        ("PROTECTED := yes\n", ("PROTECTED=no",), {}),
        ("PROTECTED := yes\n", ("-e",), {"PROTECTED": "no"}),
    ]
    for said, arguments, settings in attempts:
        (provisioned.environment / "env.mk").write_text(f"STACK := baremetal\n{said}")
        done = provisioned.make("destroy", "ENV=rack", "YES=1", *arguments, **settings)
        assert done.returncode == 2, (said, arguments)
        assert "destroy: rack is protected" in done.stderr
        assert "wanted: PROTECTED := no in inventories/rack/env.mk" in done.stderr
    assert outputs(provisioned) == ["fleet"]


def test_destroy_asks_and_then_destroys(provisioned: Copy) -> None:
    code, screen = provisioned.make_at_a_terminal("destroy", "ENV=rack", answer="no")
    assert (code, outputs(provisioned)) == (2, ["fleet"]), screen
    code, screen = provisioned.make_at_a_terminal("destroy", "ENV=rack", answer="rack")
    assert (code, outputs(provisioned)) == (0, []), screen


def test_a_value_that_looks_like_a_plan_without_changes_is_still_asked_about(provisioned: Copy) -> None:
    nodes = good_nodes()
    nodes[0]["applyable"] = False  # the stack does not know it, and the plan repeats it among the variables
    (provisioned.environment / "terraform.tfvars").write_text(f"nodes = {json.dumps(nodes)}\n")
    done = provisioned.make("destroy", "ENV=rack")
    assert done.returncode == 2
    assert "no terminal to ask at" in done.stderr
    assert outputs(provisioned) == ["fleet"]


@pytest.mark.parametrize("target", ["plan", "provision", "destroy"])
def test_missing_variables_are_named(copy: Copy, target: str) -> None:
    (copy.environment / "terraform.tfvars").unlink()
    done = copy.make(target, "ENV=rack", YES="1")
    assert done.returncode == 2
    assert "inventories/rack/terraform.tfvars is not there; wanted: the stack's variables" in done.stderr


@pytest.mark.parametrize("said", ["", "STACK := azure\n", "STACK := ../../terraform\n"])
def test_a_stack_that_does_not_exist_is_refused(copy: Copy, said: str) -> None:
    (copy.environment / "env.mk").write_text(said)
    done = copy.make("plan", "ENV=rack")
    assert done.returncode == 2
    assert "wanted one of: aws baremetal. Say it in inventories/rack/env.mk" in done.stderr


def test_no_place_for_the_state_is_refused_with_the_way_to_get_one(copy: Copy) -> None:
    (copy.environment / "backend.hcl").unlink()
    on_metal = copy.make("plan", "ENV=rack")
    (copy.environment / "env.mk").write_text("STACK := aws\n")
    on_aws = copy.make("plan", "ENV=rack")
    assert (on_metal.returncode, on_aws.returncode) == (2, 2)
    assert "Write it after the pattern of inventories/baremetal/backend.hcl" in on_metal.stderr
    assert "Run `make bootstrap ENV=rack REGION=<region>` once" in on_aws.stderr


def test_a_state_from_before_it_lay_in_s3_is_not_forgotten(copy: Copy) -> None:
    (copy.environment / "env.mk").write_text("STACK := aws\n")
    (copy.environment / "terraform.tfstate").write_text('{"version": 4}')
    done = copy.make("provision", "ENV=rack", YES="1")
    assert done.returncode == 2
    assert "inventories/rack/terraform.tfstate holds a state, and stacks/aws keeps its own in S3 now" in done.stderr
    assert "state push" in done.stderr


def bootstrap(copy: Copy, **settings: str) -> subprocess.CompletedProcess[str]:
    (copy.environment / "env.mk").write_text("STACK := aws\n")
    return copy.make("bootstrap", "ENV=rack", "REGION=us-west-2", "BUCKET=test-makefile-state", YES="1", **settings)


def test_bootstrap_makes_the_bucket_and_writes_where_the_state_lies(copy: Copy, emulator: Emulator) -> None:
    (copy.environment / "backend.hcl").unlink()
    done = bootstrap(
        copy,
        AWS_ENDPOINT_URL=emulator.endpoint,
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_EC2_METADATA_DISABLED="true",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (copy.environment / "backend.hcl").read_text(encoding="utf-8")
    assert 'bucket = "test-makefile-state"\nkey    = "rack/terraform.tfstate"\nregion = "us-west-2"\n' in text


def test_bootstrap_never_writes_over_another_place(copy: Copy) -> None:
    before = (copy.environment / "backend.hcl").read_text(encoding="utf-8")
    done = bootstrap(copy, **stand_in(copy, {"format_version": "1.2", "applyable": False, "complete": True}))
    assert done.returncode == 2
    assert "names another place than" in done.stderr
    assert (copy.environment / "backend.hcl").read_text(encoding="utf-8") == before


def test_bootstrap_without_aws_has_nothing_to_do(copy: Copy) -> None:
    done = copy.make("bootstrap", "ENV=rack")
    assert done.returncode == 2
    assert "STACK of rack is baremetal, whose state is a file" in done.stderr
