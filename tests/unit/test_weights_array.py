"""What the store's boot script does with disks: real signatures on files in place of devices, a sysfs made for them."""

import importlib.util
import shutil
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from types import ModuleType

import pytest

from .data import REPOSITORY

SCRIPT = REPOSITORY / "roles/model_store/files/store_array.py"
# udev's name on EC2: model and serial number, which for instance store volumes is AWS and 17 hexadecimal digits.
NAME = "nvme-Amazon_EC2_NVMe_Instance_Storage_AWS{:017d}"
SET = uuid.UUID("6d1f3b2a-93a0-4d0e-8f3c-2b7c5a9e1d44")
MIB = 1 << 20


def load() -> ModuleType:
    specification = importlib.util.spec_from_file_location("store_array", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["store_array"] = module
    specification.loader.exec_module(module)
    return module


array = load()


class Machine:
    """A root disk on EBS, and so many instance store disks; kernel names begin at a number of the caller's."""

    def __init__(self, root: Path, disks: int, first: int = 1) -> None:
        self.root = root
        self.dev, self.sys, self.proc = root / "dev", root / "sys", root / "proc"
        (self.dev / "disk/by-id").mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/mountinfo").write_text("21 1 259:0 / / rw - ext4 /dev/root rw\n")
        (self.proc / "swaps").write_text("Filename Type Size Used Priority\n")
        self.disks = [self.add(f"nvme{first + n}n1", NAME.format(n)) for n in range(disks)]
        self.ebs = self.add("nvme0n1", "nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0")

    def add(self, kernel: str, by_id: str) -> Path:
        path = self.dev / kernel
        path.touch()
        with path.open("r+b") as file:
            file.truncate(64 * MIB)
        (self.dev / "disk/by-id" / by_id).symlink_to(f"../../{kernel}")
        # NVMe disks have a second name, with the number of the name space.
        (self.dev / "disk/by-id" / f"{by_id}_1").symlink_to(f"../../{kernel}")
        block = self.sys / "class/block" / kernel
        (block / "holders").mkdir(parents=True)
        (block / "ro").write_text("0\n")
        (block / "dev").write_text(f"259:{len(list(self.dev.glob('nvme*')))}\n")
        return path

    def hold(self, disk: Path, by: str) -> None:
        (self.sys / "class/block" / disk.name / "holders" / by).mkdir()

    def run(self, capsys: pytest.CaptureFixture[str], *words: str, count: int | None = None) -> tuple[int, str, str]:
        count = len(self.disks) if count is None else count
        roots = ["--dev", str(self.dev), "--sys", str(self.sys), "--proc", str(self.proc), "--count", str(count)]
        code = array.main([*(words or ("--instance-store", "--dry-run")), *roots])
        said = capsys.readouterr()
        return code, said.out.replace(str(self.dev), "/dev"), said.err.replace(str(self.dev), "/dev")


def member(disk: Path, name: str = "any:coderack-store", identity: uuid.UUID = SET) -> None:
    """A superblock 1.2 as mdadm writes it (struct mdp_superblock_1 of linux/raid/md_p.h)."""
    head = struct.pack("<IIII", 0xA92B4EFC, 1, 0, 0) + identity.bytes + name.encode().ljust(32, b"\0")
    head += struct.pack("<QiIQII", 0, 0, 0, 100_000, 1024, 2).ljust(128 - len(head), b"\0")
    data = struct.pack("<QQQQ", 2048, 100_000, 8, 0) + struct.pack("<II", 0, 0) + uuid.uuid4().bytes + bytes(8)
    state = struct.pack("<QQQII", 0, 1, 0, 0, 2)
    block = bytearray((head + data + state).ljust(256, b"\0") + struct.pack("<HH", 0, 1))
    total = sum(struct.unpack(f"<{len(block) // 4}I", block))
    struct.pack_into("<I", block, 216, ((total & 0xFFFFFFFF) + (total >> 32)) & 0xFFFFFFFF)
    with disk.open("r+b") as file:
        file.seek(4096)
        file.write(block)


def ext4(disk: Path, label: str) -> None:
    program = shutil.which("mkfs.ext4", path=array.PATHS)
    assert program is not None
    subprocess.run([program, "-q", "-F", "-L", label, str(disk)], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def eight(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 8)


def test_eight_empty_disks_become_one_array_of_exactly_these(
    eight: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = eight.run(capsys)
    assert code == 0
    disks = " ".join(f"/dev/nvme{n}n1" for n in range(1, 9))
    assert "mdadm --create /dev/md/coderack-store --run --metadata=1.2 --level=0 --raid-devices=8" in out
    assert f"--name=coderack-store --homehost=any {disks}\n" in out
    assert "mkfs.xfs -q -K -L coderack /dev/md/coderack-store" in out
    assert "nvme0n1" not in out


def test_kernel_names_that_moved_at_a_reboot_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, 2, first=5)
    assert "/dev/nvme5n1 /dev/nvme6n1\n" in machine.run(capsys)[1]


def test_one_disk_gets_a_file_system_and_no_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = Machine(tmp_path, 1).run(capsys)
    assert code == 0
    assert "mdadm" not in out
    assert "mkfs.xfs -q -K -L coderack /dev/nvme1n1" in out


def test_a_second_boot_leaves_the_one_disk_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, 1)
    words = ("--instance-store", "--filesystem", "ext4")
    assert machine.run(capsys, *words)[0] == 0
    before = machine.disks[0].read_bytes()
    code, out, _ = machine.run(capsys, *words)
    assert (code, "running" in out) == (0, False)
    assert machine.disks[0].read_bytes() == before


def test_members_of_our_array_are_assembled_and_never_made_anew(
    eight: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for disk in eight.disks:
        member(disk)
    code, out, _ = eight.run(capsys)
    assert code == 0
    assert f"mdadm --assemble /dev/md/coderack-store --uuid={SET}" in out
    assert "--create" not in out
    assert "mkfs" not in out


@pytest.mark.parametrize(("label", "code"), [("coderack", 0), ("customers", 1)])
def test_an_array_that_runs_is_taken_as_it_is_if_it_carries_ours(
    eight: Machine, capsys: pytest.CaptureFixture[str], label: str, code: int
) -> None:
    for disk in eight.disks:
        member(disk)
        eight.hold(disk, "md127")
    ext4(eight.add("md127", "md-name-any:coderack-store"), label)
    seen, out, _ = eight.run(capsys, "--instance-store", "--dry-run", "--filesystem", "ext4")
    assert (seen, "would run" in out) == (code, False)


def test_an_array_whose_making_was_cut_off_gets_its_file_system(
    eight: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for disk in eight.disks:
        member(disk)
        eight.hold(disk, "md127")
    eight.add("md127", "md-name-any:coderack-store")
    assert "would run: mkfs.xfs -q -K -L coderack /dev/md127\n" in eight.run(capsys)[1]


def test_a_disk_with_somebodys_file_system_is_refused_and_named(
    eight: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    ext4(eight.disks[3], "customers")
    before = [disk.stat().st_mtime_ns for disk in eight.disks]
    code, out, err = eight.run(capsys, "--instance-store")
    assert code == 1
    assert "(/dev/nvme4n1) carries ext4 customers, which is not ours" in err
    assert "wipefs --all /dev/nvme4n1" in err
    assert out == ""
    assert [disk.stat().st_mtime_ns for disk in eight.disks] == before


def test_a_member_of_another_array_is_refused(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    member(eight.disks[0], "db1:data")
    code, _, err = eight.run(capsys)
    assert code == 1
    assert "carries linux_raid_member db1:data" in err


def test_half_of_our_array_is_said_to_be_lost_and_not_made_anew(
    eight: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for disk in eight.disks[:7]:
        member(disk)
    code, out, err = eight.run(capsys)
    assert (code, out) == (1, "")
    assert "what was striped over them is lost" in err


def test_parts_of_two_arrays_of_ours_are_refused(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    for number, disk in enumerate(eight.disks):
        member(disk, identity=SET if number < 4 else uuid.uuid4())
    assert eight.run(capsys)[0] == 1


def test_a_missing_disk_is_refused_with_both_numbers(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = eight.run(capsys, count=9)
    assert code == 1
    assert "8 disks are there" in err
    assert "wanted 9" in err


def test_a_partitioned_disk_is_refused(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    part = eight.sys / "class/block/nvme2n1/nvme2n1p1"
    part.mkdir()
    (part / "partition").write_text("1\n")
    code, _, err = eight.run(capsys)
    assert code == 1
    assert "has partitions (nvme2n1p1)" in err


def test_a_mounted_disk_is_refused_even_if_it_carries_nothing_known(
    eight: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    number = (eight.sys / "class/block/nvme2n1/dev").read_text().strip()
    with (eight.proc / "self/mountinfo").open("a") as file:
        file.write(f"30 21 {number} / /data rw - strange /dev/nvme2n1 rw\n")
    code, _, err = eight.run(capsys)
    assert code == 1
    assert "is mounted at /data" in err


def test_a_disk_held_by_volume_management_is_refused(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    eight.hold(eight.disks[0], "dm-0")
    code, _, err = eight.run(capsys)
    assert code == 1
    assert "is held by dm-0" in err


def test_disks_of_bare_metal_are_those_that_are_named(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", NAME.format(0), "--device", NAME.format(1), "--dry-run")
    code, out, _ = eight.run(capsys, *words, count=2)
    assert code == 0
    assert "--homehost=any /dev/nvme1n1 /dev/nvme2n1\n" in out


def test_a_device_named_by_the_kernels_name_is_bad_usage(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        eight.run(capsys, "--device", "/dev/nvme1n1", count=1)
    assert ended.value.code == 2
    assert "a name as in /dev/disk/by-id" in capsys.readouterr().err


def test_a_named_disk_that_is_gone_is_refused(eight: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = eight.run(capsys, "--device", "nvme-Samsung_PM1743_S1", count=1)
    assert code == 1
    assert "nvme-Samsung_PM1743_S1 is not there" in err


def test_without_sysfs_nobody_can_say_whether_a_disk_is_used(
    eight: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(eight.sys)
    assert eight.run(capsys)[0] == 3
