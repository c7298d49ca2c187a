"""What role nccl promises about NCCL's environment."""

from __future__ import annotations

from testinfra.host import Host

FILE = "/etc/coderack/nccl.env"


def test_only_the_group_reads_the_file(host: Host) -> None:
    file = host.file(FILE)
    assert (file.user, file.group, file.mode) == ("root", "coderack", 0o640)


def test_a_unit_gets_the_profile_of_infiniband_and_nothing_else(host: Host) -> None:
    shown = host.check_output(f"systemd-run --quiet --wait --pipe --collect --property=EnvironmentFile={FILE} env")
    interface = host.check_output("ip -o -4 route show to default").split(" dev ")[1].split()[0]
    seen = dict(line.split("=", 1) for line in shown.splitlines() if line.startswith(("NCCL_", "CUDA_", "LD_", "FI_")))
    assert seen == {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_3",
        "NCCL_IB_TIMEOUT": "22",
    }
