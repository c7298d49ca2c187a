"""Outputs of all-reduce tests, built anew from the lines and figures of public ones; each says where from."""

from collections.abc import Sequence

GIB = 2**30

HEAD = """\
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007
# Collective test starting: all_reduce_perf
# nThread 1 nGpus {gpus} minBytes 1073741824 maxBytes 17179869184 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
"""  # noqa: E501 - as nccl-tests #389 shows it
COLUMNS = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
# Size, time, algbw, busbw out of place and in place: awsome-distributed-ai, micro-benchmarks/nccl-tests/README.md.
P5_PAIR = (
    (134217728, "870.3", "154.22", "289.16", "876.8", "153.07", "287.01"),
    (1073741824, "4607.6", "233.04", "436.95", "4565.6", "235.18", "440.96"),
    (17179869184, "66132", "259.78", "487.09", "66109", "259.87", "487.25"),
)

Speeds = tuple[int, str, str, str, str, str, str]


def row(speeds: Speeds, wrong: str = "0", tag: str = "") -> str:
    size, *numbers = speeds
    out = "  ".join(f"{number:>7}" for number in numbers[:3])
    inside = "  ".join(f"{number:>7}" for number in numbers[3:])
    return f"{tag}{size:>12}  {size // 4:>12}     float     sum      -1{tag}  {out}  {wrong:>6}  {inside}  {wrong:>6}\n"


def even(size: int, busbw: float, ranks: int = 8) -> Speeds:
    """A row in which both ways are equally fast."""
    algbw = busbw / (2 * (ranks - 1) / ranks)
    one = (f"{size / algbw / 1000:.0f}", f"{algbw:.2f}", f"{busbw:.2f}")
    return (size, *one, *one)


def devices(hosts: Sequence[str] = ("gpu-a",), per_host: int = 8) -> str:
    """As nccl-tests #294 (H100) names the GPUs of each rank."""
    return "".join(
        f"#  Rank {rank:2} Group  0 Pid {895544 + rank} on {host:>10} device {rank % per_host:2} "
        f"[0002:00:{rank % per_host + 1:02}] NVIDIA H100 80GB HBM3\n"
        for rank, host in enumerate(host for host in hosts for _ in range(per_host))
    )


def closing(average: float = 480.0, wrong: int = 0) -> str:
    return (
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : {average:.4g} \n#\n"
    )


def nvls_log(
    hosts: Sequence[str] = ("gpu-a",),
    per_host: int = 8,
    *,
    without: Sequence[int] = (),
    channels: int = 16,
    algorithm: str = "NVLS",
    size: int = 16 * GIB,
) -> str:
    """NVLS as NCCL's init.cc, transport/nvls.cc and enqueue.cc log it (nccl #952, #1453, nccl-tests #228)."""
    lines = ["NCCL version 2.27.7+cuda13.0"]
    for host in hosts:
        for device in range(per_host):
            head = f"{host}:22760{device}:22766{device} [{device}] NCCL INFO "
            absent = "not " if device in without else ""
            lines.append(f"{head}NVLS multicast support is {absent}available on dev {device}")
            lines.append(f"{head}16 coll channels, 16 collnet channels, {channels} nvls channels, 16 p2p channels, 2")
            lines.append(f"{head}AllReduce: {size} Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..15}}")
    return "\n".join(lines) + "\n"


HCAS = tuple(f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11))


def infiniband_log(
    hosts: Sequence[str] = ("gpu-a", "gpu-b"),
    hcas: Sequence[str] = HCAS,
    *,
    network: str = "IB",
    direct: bool = True,
    layer: str = "IB",
) -> str:
    """The network as net_ib/init.cc, init.cc and transport/net.cc log it (nccl #1357, nccl-tests #188, #228)."""
    using = " ".join(f"[{index}]{name}:1/{layer}" for index, name in enumerate(hcas))
    lines = []
    for rank, host in enumerate(hosts):
        head = f"{host}:39636:39690 [7] NCCL INFO "
        rail = "/GDRDMA" if direct else ""
        lines.append(f"{head}NCCL_IB_HCA set to {','.join(hcas)}")
        lines.append(f"{head}NET/IB : Using {using} [RO]; OOB ibp25s0:10.20.0.120<0>")
        lines.append(f"{head}Using network {network}")
        lines.append(f"{head}Channel 00/0 : {8 * (1 - rank)}[0] -> {8 * rank}[0] [receive] via NET/{network}/0{rail}")
        lines.append(f"{head}Channel 00/0 : {8 * rank}[0] -> {8 * (1 - rank)}[0] [send] via NET/{network}/0(4){rail}")
    return "\n".join(lines) + "\n"


def efa_log(hosts: Sequence[str] = ("gpu-a", "gpu-b"), *, nics: int = 32, newer: bool = True) -> str:
    """The network as aws-ofi-nccl logs it: nccl #1597 (p5en) and, newer, src/nccl_ofi_net.cpp; channels: nccl #527."""
    provider = f"Selected provider is efa, fabric is efa (found {nics} nics)"
    if not newer:
        provider = f"Selected Provider is efa (found {nics} nics)"
    name = "Libfabric" if newer else "AWS Libfabric"
    lines = []
    for host in hosts:
        head = f"{host}:6831:6840 [0] NCCL INFO "
        lines += [
            f"{head}NET/OFI Initializing aws-ofi-nccl 1.14.2",
            f"{head}NET/OFI {provider}",
            f"{head}Using network {name}",
            f"{head}Channel 00 : 0[101c0] -> 8[101c0] [receive] via NET/{name}/0/GDRDMA",
            f"{head}Channel 00 : 8[101c0] -> 0[101c0] [send] via NET/{name}/0/GDRDMA",
        ]
    return "\n".join(lines) + "\n"


def table(*rows: Speeds, wrong: str = "0") -> str:
    return COLUMNS + "".join(row(speeds, wrong) for speeds in rows)


def node(busbw: float = 480.0, *, log: str | None = None, wrong: str = "0") -> str:
    """A whole output of one node with eight GPUs; NVIDIA names 480 GB/s for H100 (nccl-tests #212)."""
    told = nvls_log() if log is None else log
    rows = table(even(GIB, busbw * 0.9), even(16 * GIB, busbw), wrong=wrong)
    return HEAD.format(gpus=8) + devices() + told + rows + closing(busbw * 0.95, 0 if wrong == "N/A" else int(wrong))


def pair(network: str, rows: Sequence[Speeds] = P5_PAIR) -> str:
    """A whole output of two nodes."""
    hosts = ("gpu-a", "gpu-b")
    log = nvls_log(hosts, algorithm="NVLS_TREE") + network
    return HEAD.format(gpus=1) + devices(hosts) + log + table(*rows) + closing(404.4)
