"""Reading what an all-reduce test printed."""

import pytest

from coderack.clients.nccl_tests import Device, parse

from .nccl_outputs import (
    GIB,
    closing,
    devices,
    efa_log,
    even,
    infiniband_log,
    node,
    nvls_log,
    pair,
    row,
    table,
)


def test_the_table_of_two_p5_is_read_with_its_slower_way() -> None:
    run = parse(pair(efa_log()))
    assert [(one.size, one.busbw, one.wrong) for one in run.rows] == [
        (134217728, 287.01, 0),
        (1073741824, 436.95, 0),
        (17179869184, 487.09, 0),
    ]
    assert (run.complete, run.average, run.out_of_bounds) == (True, 404.4, 0)


def test_every_rank_is_named_with_its_host_and_gpu() -> None:
    run = parse(pair(efa_log()))
    assert len(run.devices) == 16
    assert run.hosts == ("gpu-a", "gpu-b")
    assert run.devices[9] == Device(9, "gpu-b", 1, "0002:00:02", "NVIDIA H100 80GB HBM3")


# srun -l and mpirun --tag-output put the rank in front, and again before each piece of a row (nccl #1453).
@pytest.mark.parametrize("tag", ["0: ", "[0]", "[1,0]<stdout>:", "[0] "])
def test_a_launchers_tags_are_looked_through(tag: str) -> None:
    run = parse(
        row((16 * GIB, "66132", "259.78", "487.09", "66109", "259.87", "487.25"), tag=tag if "[" in tag else "")
    )
    assert [one.busbw for one in run.rows] == [487.09]
    head = "".join(f"{tag}{line}\n" for line in devices().splitlines())
    assert [device.host for device in parse(head).devices] == ["gpu-a"] * 8


def test_a_rate_that_is_no_number_is_kept_as_that() -> None:
    run = parse(table((16 * GIB, "nan", "nan", "nan", "1.0", "1.00", "1.75")))
    assert len(run.rows) == 1
    assert not run.rows[0].out_of_place >= 0


@pytest.mark.parametrize(("shown", "wrong"), [("0", 0), ("3", 6), ("1e+05", 200000), ("N/A", None)])
def test_wrong_elements_of_both_ways_are_added(shown: str, wrong: int | None) -> None:
    assert parse(table(even(GIB, 400), wrong=shown)).rows[0].wrong == wrong


# nccl-tests before 2022 has a column `error` with differences, not counts; those are no count of wrong elements.
def test_the_column_error_of_old_versions_is_not_read_as_a_count() -> None:
    way = "66132   259.78   487.09   4e-07"
    assert parse(f"  17179869184    4294967296     float     sum    {way}    {way}").rows == ()


def test_a_cut_off_output_is_not_complete() -> None:
    whole = node()
    assert parse(whole).complete
    assert not parse(whole[: whole.index("# Avg")]).complete
    assert not parse("").complete


def test_nvls_is_read_for_each_gpu() -> None:
    log = parse(nvls_log(without=(3,), channels=0)).log
    assert log.version == "2.27.7"
    assert [device for (_, device), there in log.multicast.items() if not there] == [3]
    assert log.nvls_channels == {0}
    assert log.algorithms == {16 * GIB: {"NVLS"}}


def test_the_number_of_an_algorithm_in_older_logs_is_translated() -> None:
    log = parse("worker-1:497888:497888 [0] NCCL INFO 262144 Bytes -> Algo 1 proto 1 time 54.707825\n").log
    assert log.algorithms == {262144: {"RING"}}


def test_an_algorithm_of_another_collective_does_not_count() -> None:
    log = parse("gpu-a:1:2 [0] NCCL INFO AllGather: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n").log
    assert log.algorithms == {}


def test_infiniband_is_read_with_its_devices_and_gpu_direct() -> None:
    log = parse(infiniband_log()).log
    assert log.networks == {"IB"}
    assert log.hcas["mlx5_10"] == "IB"
    assert len(log.hcas) == 8
    assert (log.channels, log.direct_channels) == (4, 4)
    assert log.overrides["NCCL_IB_HCA"].startswith("mlx5_0,mlx5_3")


# Newer versions say rail and plane of a port too: net_ib/init.cc of NCCL 2.30.
def test_ports_with_a_rail_and_with_sharp_are_read() -> None:
    log = parse(
        "a:1:2 [7] NCCL INFO NET/IB : Using [0]mlx5_0:1:0/IB/SHARP [1]mlx5_1:1::2/RoCE [RO]; OOB ib0:10.2.0.1<0>"
    ).log
    assert dict(log.hcas) == {"mlx5_0": "IB", "mlx5_1": "RoCE"}


@pytest.mark.parametrize("newer", [True, False])
def test_efa_is_read_with_provider_and_number_of_devices(newer: bool) -> None:
    log = parse(efa_log(newer=newer)).log
    assert log.networks == {"Libfabric" if newer else "AWS Libfabric"}
    assert log.ofi_providers == {"efa"}
    assert log.ofi_nics == {32}
    assert (log.channels, log.direct_channels) == (4, 4)


def test_the_networks_of_all_ranks_are_kept() -> None:
    assert parse(infiniband_log() + infiniband_log(network="Socket")).log.networks == {"IB", "Socket"}


def test_warnings_are_kept_once() -> None:
    line = (
        "gpu-a:1:2 [0] transport/nvls.cc:376 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2\n"
    )
    assert parse(line * 8).log.warnings == ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2",)


def test_anything_at_all_is_read_without_failing() -> None:
    assert parse("\x00 [0] NCCL\n#  Rank\n" + closing(0)).complete
