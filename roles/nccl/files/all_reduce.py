"""An all-reduce over the GPUs of one or several nodes, with the NCCL that torch brings; prints what nccl-tests prints.

Started on every node at the same time, with `Job` as JSON on standard input; starts one process per GPU. nccl-tests
would need MPI, SSH between the nodes, and a build against the NCCL that is served with; this needs the engine's own
Python environment and one open port. Bus bandwidth as in nccl-tests doc/PERFORMANCE.md: bytes / time * 2 (n - 1) / n.

torch has no all-reduce out of place, so the two halves of a row are two rounds.
"""

import dataclasses
import datetime
import json
import multiprocessing
import os
import socket
import sys
import time
from typing import Any


@dataclasses.dataclass(frozen=True)
class Job:
    nodes: int
    node: int  # this node's number; 0 is the head, which prints the table
    gpus: int  # on each node
    head: str  # address of the head
    port: int  # on the head
    sizes: list[int]  # bytes, ascending
    iterations: int
    timeout: int  # seconds for everything
    backend: str = "nccl"  # gloo: on the CPU, to try this program


def main() -> None:
    job = Job(**json.load(sys.stdin))
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING"}
    # Processes of their own, forked before torch looks at a GPU: one that hangs in the driver cannot keep the others.
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(job, index), daemon=True) for index in range(job.gpus)]
    for process in ranks:
        process.start()
    end = time.monotonic() + job.timeout
    while any(process.is_alive() for process in ranks) and time.monotonic() < end:
        if any(process.exitcode not in (None, 0) for process in ranks):
            time.sleep(5)  # the others notice, or say why
            break
        time.sleep(0.2)
    late = [str(index) for index, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        if process.is_alive():
            process.kill()
    if late:
        print(
            f"all_reduce: GPUs {', '.join(late)} of {socket.gethostname()} did not end within {job.timeout} s",
            flush=True,
        )
    sys.exit(int(bool(late) or any(process.exitcode for process in ranks)))


def _rank(job: Job, index: int) -> None:
    import torch  # noqa: PLC0415 - takes seconds, and the parent must not load it
    import torch.distributed as dist  # noqa: PLC0415

    rank, world = job.node * job.gpus + index, job.nodes * job.gpus
    device = torch.device("cuda", index) if job.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        job.backend,
        init_method=f"tcp://{job.head}:{job.port}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=job.timeout),
    )
    _print_devices(torch, dist, job, rank, index)
    rates, wrong = [], 0
    for size in job.sizes:
        buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)
        rounds = [_seconds(torch, dist, buffer, job.iterations) for _ in range(2)]
        bad = _wrong(torch, dist, buffer, rank, world)
        # The slowest rank's time counts, and everybody's wrong elements.
        slowest = torch.tensor(rounds, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        found = torch.tensor([bad], dtype=torch.float64, device=device)
        dist.all_reduce(found)
        wrong += int(found.item())
        if rank == 0:
            halves = []
            for seconds in slowest.tolist():
                algorithm = size / seconds / 1e9
                bus = algorithm * 2 * (world - 1) / world
                rates.append(bus)
                halves.append(f"  {seconds * 1e6:7.0f}  {algorithm:6.2f}  {bus:6.2f}  {int(found.item()):6g}")
            print(f"{size:12}  {size // 4:12}     float     sum      -1{halves[0]}{halves[1]}", flush=True)
        del buffer
    dist.barrier()
    if rank == 0:
        print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        print(f"# Avg bus bandwidth    : {sum(rates) / len(rates):g}", flush=True)
    dist.destroy_process_group()


def _print_devices(torch: Any, dist: Any, job: Job, rank: int, index: int) -> None:
    name, bus = "CPU", "-"
    if job.backend == "nccl":
        about = torch.cuda.get_device_properties(index)
        name = about.name
        bus = f"{getattr(about, 'pci_domain_id', 0):04x}:{getattr(about, 'pci_bus_id', 0):02x}:00"
    line = (
        f"#  Rank {rank:2} Group  0 Pid {os.getpid():6} on {socket.gethostname():>10} device {index:2} [{bus}] {name}"
    )
    lines: list[Any] = [None] * (job.nodes * job.gpus)
    dist.all_gather_object(lines, line)
    if rank == 0:
        print("# Using devices", *lines, "#", sep="\n")
        print(
            f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  time algbw busbw #wrong, twice",
            flush=True,
        )


def _seconds(torch: Any, dist: Any, buffer: Any, iterations: int) -> float:
    """Seconds for one all-reduce, averaged; zeros stay zeros however often they are added."""
    for _ in range(3):
        dist.all_reduce(buffer)
    dist.barrier()
    if buffer.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(buffer)
    if buffer.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / iterations


def _wrong(torch: Any, dist: Any, buffer: Any, rank: int, world: int) -> int:
    """How many sums are wrong. Small whole numbers add up exactly, in whatever order."""
    step = 1 << 26
    for first in range(0, buffer.numel(), step):
        part = buffer[first : first + step]
        part.copy_(torch.arange(part.numel(), device=buffer.device) % 1024)
        part.add_(rank)
    dist.all_reduce(buffer)
    found = 0
    for first in range(0, buffer.numel(), step):
        part = buffer[first : first + step]
        expected = (torch.arange(part.numel(), device=buffer.device) % 1024) * world + world * (world - 1) // 2
        found += int((part != expected).sum().item())
    return found


if __name__ == "__main__":
    main()
