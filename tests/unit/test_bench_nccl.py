"""The verdict on an all-reduce test: what must be found, and what must not be taken for fine."""

from dataclasses import replace

import pytest

from coderack.bench.nccl import Expectation, Verdict, judge
from coderack.clients.nccl_tests import parse

from .nccl_outputs import (
    GIB,
    HCAS,
    HEAD,
    P5_PAIR,
    closing,
    devices,
    efa_log,
    even,
    infiniband_log,
    node,
    nvls_log,
    pair,
    table,
)

NODE = Expectation(ranks=8, nodes=1, floor=440, nvls=True, network="none")
EFA = Expectation(ranks=16, nodes=2, floor=430, nvls=True, network="efa", efa_devices=32)
INFINIBAND = Expectation(ranks=16, nodes=2, floor=440, nvls=True, network="infiniband", hcas=HCAS)


def ids(verdict: Verdict) -> list[str]:
    return [finding.id for finding in verdict.findings]


def verdict(output: str, wanted: Expectation = NODE) -> Verdict:
    return judge(parse(output), wanted)


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        pytest.param(node(480), NODE, id="8 H100, nccl-tests #212"),
        pytest.param(node(482.26), NODE, id="8 H200, stas00/ml-engineering network/README.md"),
        pytest.param(pair(efa_log()), EFA, id="2 p5.48xlarge, awsome-distributed-ai"),
        pytest.param(pair(efa_log(newer=False)), EFA, id="plugin before 1.14"),
        pytest.param(pair(infiniband_log(), [even(16 * GIB, 470)]), INFINIBAND, id="2x8 H100, 8 NDR, nccl #2409"),
        pytest.param(pair(infiniband_log(network="IBext_v8")), INFINIBAND, id="IB plugin, nccl #1357"),
    ],
)
def test_healthy_runs_have_no_findings(output: str, wanted: Expectation) -> None:
    result = verdict(output, wanted)
    assert (ids(result), result.exit_code) == ([], 0)


def test_the_rate_is_that_of_the_largest_size() -> None:
    result = verdict(pair(efa_log()), EFA)
    assert (result.busbw, result.size) == (487.09, 17179869184)


# 370 for H100 (nccl-tests #212), 367.61 for H200 (stas00/ml-engineering): the ring that is left without NVLS.
@pytest.mark.parametrize("busbw", [370.0, 367.61, 352.0])
def test_a_drop_to_the_rate_of_a_ring_names_nvls_even_if_the_log_looks_fine(busbw: float) -> None:
    result = verdict(node(busbw))
    assert (ids(result), result.exit_code) == (["slow"], 1)
    assert result.findings[0].cause.startswith("NVLS lost")


def test_another_drop_does_not_blame_nvls() -> None:
    slow = verdict(node(231)).findings[0]
    assert "NVLS" not in slow.cause
    assert "NVLink" in slow.cause


@pytest.mark.parametrize(
    ("log", "seen"),
    [
        pytest.param(nvls_log(without=(3,)), "gpu-a GPU 3", id="nccl #952"),
        pytest.param(nvls_log(channels=0), "0 nvls channels", id="nccl-tests #228"),
        pytest.param(nvls_log(algorithm="RING"), "took RING", id="NCCL_ALGO=Ring, nccl-tests #212"),
        pytest.param(
            nvls_log() + "gpu-a:1:2 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n",
            "NCCL_NVLS_ENABLE is 0",
            id="the work-around of nccl #1562 that stayed",
        ),
    ],
)
def test_a_log_without_nvls_fails_even_at_full_rate(log: str, seen: str) -> None:
    result = verdict(node(480, log=log))
    assert (ids(result), result.exit_code) == (["nvls-lost"], 1)
    assert seen in result.findings[0].seen


def test_a_slow_run_whose_log_lost_nvls_says_so_once() -> None:
    result = verdict(node(370, log=nvls_log(channels=0)))
    assert ids(result) == ["nvls-lost", "slow"]
    assert result.findings[1].cause == "NVLS lost (see above)"


@pytest.mark.parametrize("log", ["", nvls_log(per_host=7)])
def test_a_missing_or_partial_log_is_unknown_not_fine(log: str) -> None:
    result = verdict(node(480, log=log))
    assert (ids(result), result.exit_code) == (["nvls-unknown"], 3)


def test_gpus_without_nvlink_need_no_nvls() -> None:
    without = replace(NODE, nvls=False, floor=40)
    assert ids(verdict(node(44, log=""), without)) == []


def test_wrong_sums_fail_however_fast() -> None:
    result = verdict(node(480, wrong="5"))
    assert (ids(result), result.exit_code) == (["wrong-sums"], 1)


def test_unchecked_sums_are_unknown() -> None:
    result = verdict(node(480, wrong="N/A"))
    assert (ids(result), result.exit_code) == (["sums-not-checked"], 3)


def test_without_a_floor_the_rate_is_unknown_and_what_to_record_is_said() -> None:
    result = verdict(node(480), replace(NODE, floor=None))
    assert (ids(result), result.exit_code) == (["no-floor"], 3)
    assert "record 432 " in result.findings[0].action


def test_a_broken_run_is_not_offered_as_a_floor() -> None:
    result = verdict(node(370, log=nvls_log(channels=0)), replace(NODE, floor=None))
    assert result.exit_code == 1
    assert "first put right" in result.findings[-1].action


def test_small_messages_say_nothing() -> None:
    output = HEAD.format(gpus=8) + devices() + nvls_log(size=GIB) + table(even(GIB, 250)) + closing(250)
    result = verdict(output)
    assert (ids(result), result.busbw, result.exit_code) == (["sizes-too-small"], None, 3)


def test_a_rate_that_is_no_number_fails() -> None:
    nothing = (16 * GIB, "nan", "nan", "nan", "nan", "nan", "nan")
    result = verdict(HEAD.format(gpus=8) + devices() + nvls_log() + table(nothing) + closing(0))
    assert (ids(result), result.exit_code) == (["slow"], 1)


def test_other_gpus_than_asked_for_are_unknown() -> None:
    output = HEAD.format(gpus=7) + devices(per_host=7) + nvls_log() + table(even(16 * GIB, 480, 7)) + closing()
    result = verdict(output)
    assert (ids(result), result.exit_code) == (["another-test"], 3)


# Started without MPI support, every node tests itself and reports the rate of one node (nccl-tests #213).
def test_two_nodes_that_did_not_find_each_other_are_no_pair() -> None:
    result = verdict(node(480), EFA)
    assert "another-test" in ids(result)
    assert result.exit_code != 0


@pytest.mark.parametrize("output", ["", "bash: all_reduce_perf: command not found\n", HEAD + devices() + nvls_log()])
def test_a_run_that_did_not_finish_is_unknown(output: str) -> None:
    result = verdict(output)
    assert ids(result)[0] == "not-finished"
    assert result.exit_code == 3


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        pytest.param(
            "gpu-a: Test CUDA failure common.cu:1003 'system not yet initialized'", "fabric manager", id="gpu-burn #92"
        ),
        pytest.param(
            "gpu-a:1:2 [0] transport/nvls.cc:376 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory",
            "NVLS lost",
            id="nccl #1562",
        ),
        pytest.param(
            "gpu-a:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
            "locked memory",
            id="memlock",
        ),
        pytest.param("torch.OutOfMemoryError: CUDA out of memory.", "vLLM", id="vLLM still runs"),
    ],
)
def test_a_run_that_ended_with_known_words_fails_with_their_cause(last: str, cause: str) -> None:
    result = verdict(HEAD.format(gpus=8) + devices() + nvls_log() + last + "\n")
    assert (ids(result), result.exit_code) == (["not-finished"], 1)
    assert cause in result.findings[0].cause


@pytest.mark.parametrize(
    ("network", "wanted", "finding"),
    [
        pytest.param(infiniband_log(network="Socket"), INFINIBAND, "network-not-used", id="nccl-tests #188"),
        pytest.param(infiniband_log(network="Socket"), EFA, "network-not-used", id="awsome-distributed-ai #386"),
        pytest.param(
            infiniband_log(("gpu-a",)) + infiniband_log(("gpu-b",), network="Socket"),
            INFINIBAND,
            "network-not-used",
            id="one node of two fell back",
        ),
        pytest.param(infiniband_log(hcas=HCAS[:-1]), INFINIBAND, "hcas-differ", id="an HCA is down, nccl #1935"),
        pytest.param(infiniband_log(hcas=(*HCAS, "mlx5_2")), INFINIBAND, "hcas-differ", id="the storage HCA too"),
        pytest.param(infiniband_log(layer="RoCE"), INFINIBAND, "hca-not-infiniband", id="Ethernet mode"),
        pytest.param(infiniband_log(direct=False), INFINIBAND, "gpu-direct-not-used", id="nccl #1676"),
        pytest.param(efa_log(nics=31), EFA, "efa-devices-differ", id="an EFA device less"),
        pytest.param(
            efa_log().replace("provider is efa,", "provider is tcp,"), EFA, "provider-not-efa", id="nccl #398"
        ),
    ],
)
def test_a_network_that_is_not_the_wanted_one_fails_at_any_rate(
    network: str, wanted: Expectation, finding: str
) -> None:
    result = verdict(pair(network), wanted)
    assert (ids(result), result.exit_code) == ([finding], 1)


@pytest.mark.parametrize(
    ("network", "wanted", "finding"),
    [
        ("", INFINIBAND, "network-unknown"),
        ("gpu-a:1:2 [0] NCCL INFO Using network IB\n", INFINIBAND, "hcas-unknown"),
        ("gpu-a:1:2 [0] NCCL INFO Using network Libfabric\n", EFA, "provider-unknown"),
        ("gpu-a:1:2 [0] NCCL INFO Using network IB\n", INFINIBAND, "gpu-direct-unknown"),
    ],
)
def test_a_network_of_which_the_log_says_too_little_is_unknown(network: str, wanted: Expectation, finding: str) -> None:
    result = verdict(pair(network), wanted)
    assert finding in ids(result)
    assert result.exit_code == 3


# Half the bandwidth over two nodes: nccl #2409 (216-231 GB/s).
def test_a_slow_pair_points_at_the_network_between() -> None:
    result = verdict(pair(infiniband_log(), [even(16 * GIB, 231, 16)]), INFINIBAND)
    assert ids(result) == ["slow"]
    assert "network between the nodes" in result.findings[0].cause


def test_broken_counts_more_than_unknown() -> None:
    assert verdict(pair("", P5_PAIR[:2]), EFA).exit_code == 3
    assert verdict(node(300), replace(EFA, ranks=8)).exit_code == 1
