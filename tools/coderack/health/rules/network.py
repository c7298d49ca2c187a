"""InfiniBand and EFA: the right devices, each port up at full speed, counters by rate, and the way from GPU to NIC."""

from collections import Counter
from collections.abc import Iterator

from coderack.health.findings import Action, Finding, Severity, Subject
from coderack.health.probes.rdma import COUNTERS
from coderack.health.readings import ABSENT, Probe
from coderack.health.rules.common import Case, confirmed, finding, numbers, unknown
from coderack.spec.gpu import Limits

# Where 8-, 16- and 4-bit counters of the management agent stop: seen on a real node (gpud #943).
# Not the 4-bit `excessive_buffer_overrun_errors`: that same node's healthy ports stand at its end of 15.
_FULL = {
    "link_downed": 255,
    "port_xmit_discards": 65535,
    "symbol_error": 65535,
    "port_rcv_errors": 65535,
    "link_error_recovery": 255,
    "local_link_integrity_errors": 15,
}
_EFA_SLOW = {"retrans_pkts"}
_EFA_ERRORS = (
    "rx_drops",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
    "retrans_pkts",
)


def judge(case: Case) -> Iterator[Finding]:
    network = case.readings.network
    if case.wanted.network.kind == "none" or not network.complete:
        return
    devices = fabric_devices(case)
    yield from _count(case, devices)
    for device in devices:
        if case.wanted.network.kind == "infiniband":
            yield from _infiniband(case, network, device)
        else:
            yield from _efa(case, network, device)
        yield from _pcie(case, network, device)
    yield from _firmware(case, devices)
    yield from _gpu_direct(case)
    yield from _distance(case, devices)


def fabric_devices(case: Case) -> list[str]:
    """The devices to judge: those of the inventory, or all of the kind.

    Without a list, Ethernet ports, BlueFields and NVLink bridges (`ibp*`) are not the fabric's (node_exporter #3265).
    """
    network, wanted = case.readings.network, case.wanted.network
    all_devices = _devices(network)
    if wanted.devices:
        return [device for device in wanted.devices if device in all_devices]
    if wanted.kind == "efa":
        return [device for device in all_devices if _is_efa(network, device)]
    return [device for device in all_devices if _is_compute_hca(network, device)]


def _devices(network: Probe) -> list[str]:
    return sorted({key.split(".", 1)[0] for key in network.answers if key.endswith(".firmware")})


def _is_efa(network: Probe, device: str) -> bool:
    driver = network.text(f"{device}.driver")
    return driver == "efa" if driver else device.startswith(("rdmap", "efa_"))


def _is_compute_hca(network: Probe, device: str) -> bool:
    # MT41692 and MT41686 are BlueField 3 and 2: storage and management.
    if network.text(f"{device}.type") in ("MT41692", "MT41686"):
        return False
    return any(
        network[f"{device}.port.{port}.layer"].value == "InfiniBand" for port in network.names(f"{device}.port.")
    )


def _count(case: Case, devices: list[str]) -> Iterator[Finding]:
    wanted, network = case.wanted.network, case.readings.network
    name = {"infiniband": "InfiniBand", "efa": "EFA"}[wanted.kind]
    if wanted.kind == "efa" and not network.integer("verbs"):
        yield finding("efa-verbs", case.node, "/sys/class/infiniband_verbs is empty", "one entry per device")
    if missing := [device for device in wanted.devices if device not in devices]:
        yield finding(
            "hca-missing", case.node, f"not there: {', '.join(missing)}", f"{len(wanted.devices)} {name} devices"
        )
    elif wanted.wanted_count is not None and len(devices) < wanted.wanted_count:
        yield finding("hca-missing", case.node, f"{len(devices)} {name} devices", wanted.wanted_count)
    elif wanted.wanted_count is None and not devices:
        yield finding("hca-missing", case.node, f"no {name} device", "at least one")
    elif wanted.wanted_count is not None and len(devices) > wanted.wanted_count:
        yield finding("hca-unexpected", case.node, f"{len(devices)} {name} devices", wanted.wanted_count)


def _subject(device: str, port: str = "") -> Subject:
    return Subject("hca", f"{device} port {port}" if port else device)


def _infiniband(case: Case, network: Probe, device: str) -> Iterator[Finding]:
    ports = network.names(f"{device}.port.")
    if not ports:
        yield finding("ib-port-unknown", _subject(device), "no ports", "one port, active")
    for port in ports:
        key, subject = f"{device}.port.{port}", _subject(device, port)
        layer = network[f"{key}.layer"]
        if layer.error is None and layer.value != "InfiniBand":
            yield finding("ib-layer", subject, f"link layer {layer.value}", "InfiniBand")
            continue
        state = network[f"{key}.state"]
        if state.error is not None:
            yield unknown("ib-port-unknown", subject, "state", state, "4: ACTIVE")
            continue
        up = str(state.value).endswith("ACTIVE")
        if not up:
            yield _port_state(case, network, key, subject)
        else:
            yield from _rate(case, network, key, subject)
        yield from _ib_counters(case, network, key, subject)


def _port_state(case: Case, network: Probe, key: str, subject: Subject) -> Finding:
    state, phys = network.text(f"{key}.state"), network.text(f"{key}.phys")
    # A port that is down shows 10 Gb/s SDR, which is not a configuration error (nccl #1935).
    kind = "ib-port-init" if str(state).endswith("INIT") else "ib-port-down"
    return confirmed(case, finding(kind, subject, f"state {state}, physical state {phys}", "4: ACTIVE, 5: LinkUp"))


def _rate(case: Case, network: Probe, key: str, subject: Subject) -> Iterator[Finding]:
    wanted, answer = case.wanted.network.rate_gbps, network[f"{key}.rate"]
    if wanted is None:
        return
    if answer.error is not None:
        yield unknown("ib-rate", subject, "rate", answer, f"{wanted} Gb/s")
        return
    words = str(answer.value).split()
    if not words or not words[0].replace(".", "", 1).isdigit() or float(words[0]) < wanted:
        yield finding("ib-rate", subject, answer.value, f"{wanted} Gb/s")


def _ib_counters(case: Case, network: Probe, key: str, subject: Subject) -> Iterator[Finding]:
    unread = []
    for name in COUNTERS:
        answer = network[f"{key}.counter.{name}"]
        if answer.error is not None:
            unread.append(f"{name}: {answer.error}")
        # Newer firmware has wider counters, which pass these values: only one that stands there is full.
        elif answer.value == _FULL.get(name) and not (case.history.increase(f"{key}/{name}", case.window) or (0, 0))[0]:
            yield finding("ib-counter-full", subject, f"{name} is {answer.value}", "below its end")
    if unread:
        yield finding("ib-counters", subject, "; ".join(unread[:3]), "numbers")
    yield from _flaps(case, key, subject)
    yield from _ib_rates(case, key, subject)


def _flaps(case: Case, key: str, subject: Subject) -> Iterator[Finding]:
    limit = case.wanted.limits.ib_link_downed_per_day
    today = case.history.increase_today(f"{key}/link_downed", case.readings.moment.wall)
    if today >= limit:
        yield finding(
            "ib-flap",
            subject,
            f"link lost {today:.0f} times today",
            f"fewer than {limit}",
            Severity.CRITICAL,
            Action.DRAIN,
        )
    elif today:
        yield finding("ib-flap", subject, f"link lost {today:.0f} times today", "never")


def _ib_rates(case: Case, key: str, subject: Subject) -> Iterator[Finding]:
    for name, per_second in _ib_limits(case.wanted.limits).items():
        rate = case.history.per_second(f"{key}/{name}", case.window)
        if rate is not None and rate > per_second:
            yield finding("ib-errors", subject, f"{name} rises by {rate:.2f}/s", f"at most {per_second:g}/s")


def _ib_limits(limits: Limits) -> dict[str, float]:
    """Per second; 0 for counters of which any increase is a finding (NVSentinel NIC monitor)."""
    return {
        "symbol_error": limits.ib_symbol_error_per_second,
        "link_error_recovery": limits.ib_link_error_recovery_per_minute / 60,
        "port_rcv_errors": limits.ib_receive_error_per_second,
        "port_xmit_discards": limits.ib_transmit_discard_per_second,
        "local_link_integrity_errors": 0,
        "excessive_buffer_overrun_errors": 0,
    }


def _efa(case: Case, network: Probe, device: str) -> Iterator[Finding]:
    for port in network.names(f"{device}.port."):
        key, subject = f"{device}.port.{port}", _subject(device, port)
        state = network[f"{key}.state"]
        if state.error is not None:
            yield unknown("efa-port-down", subject, "state", state, "4: ACTIVE")
        elif not str(state.value).endswith("ACTIVE"):
            yield finding("efa-port-down", subject, f"state {state.value}", "4: ACTIVE")
        for name in _EFA_ERRORS:
            limits = case.wanted.limits
            limit = limits.efa_retransmit_per_second if name in _EFA_SLOW else limits.efa_error_per_second
            rate = case.history.per_second(f"{key}/{name}", case.window)
            if rate is not None and rate > limit:
                yield finding("efa-errors", subject, f"{name} rises by {rate:.0f}/s", f"at most {limit:g}/s")


def _pcie(case: Case, network: Probe, device: str) -> Iterator[Finding]:
    wanted = case.wanted.network.pcie_width
    now, highest = network.integer(f"{device}.pcie.width"), network.integer(f"{device}.pcie.width.max")
    limit = wanted or highest
    if now is not None and limit is not None and now < limit:
        yield finding("hca-pcie-width", _subject(device), f"PCIe x{now}", f"x{limit}")
    elif wanted is not None and now is None:
        yield unknown("hca-pcie-width", _subject(device), "PCIe width", network[f"{device}.pcie.width"], f"x{wanted}")


def _firmware(case: Case, devices: list[str]) -> Iterator[Finding]:
    network = case.readings.network
    versions = {device: network.text(f"{device}.firmware") for device in devices}
    counts = Counter(version for version in versions.values() if version)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for device, version in versions.items():
        if version and version != usual:
            yield finding("hca-firmware-differs", _subject(device), f"firmware {version}", f"{usual}, as on the others")


def _gpu_direct(case: Case) -> Iterator[Finding]:
    """DMA-BUF needs the open module and kernel 5.12; a peer memory module does without both."""
    host, wanted = case.readings.host, case.wanted
    if not wanted.network.gpu_direct or not wanted.gpus.count or not host.complete:
        return
    peermem, is_open, kernel = host["peermem"], host["module.open"], host.text("kernel")
    if peermem.value == 1 or (is_open.value == 1 and _at_least(kernel, (5, 12))):
        return
    if peermem.error is not None or is_open.error not in (None, ABSENT):
        answer = peermem if peermem.error is not None else is_open
        yield unknown("gpu-direct", case.node, "peer memory module and driver module", answer, "one of both ways")
        return
    module = "open" if is_open.value == 1 else "proprietary or none"
    yield finding(
        "gpu-direct",
        case.node,
        f"no peer memory module loaded, {module} kernel module, kernel {kernel}",
        "nvidia_peermem or efa_nv_peermem, or open module and kernel 5.12",
    )


def _at_least(kernel: str | None, wanted: tuple[int, int]) -> bool:
    parts = (kernel or "").split("-")[0].split(".")
    return len(parts) >= 2 and all(part.isdigit() for part in parts[:2]) and (int(parts[0]), int(parts[1])) >= wanted


def _distance(case: Case, devices: list[str]) -> Iterator[Finding]:
    """A GPU and a NIC are near when they share a bridge below the root port: PIX or PXB."""
    # One that is missing is said already, and its GPU would be far only for that.
    if not case.wanted.network.affinity or len(devices) < (case.wanted.network.wanted_count or 0):
        return
    network, pci = case.readings.network, case.readings.pci
    near = {bridge for device in devices for bridge in _switch(network.text(f"{device}.path"))}
    far = []
    for index, probe, gpu in case.judged_gpus():
        answer = pci[f"path.{probe.text('bus_id')}"]
        if answer.error is not None:
            yield unknown("gpu-nic-distance", gpu, "PCI path", answer, "a common PCIe switch")
        elif not near.intersection(_switch(str(answer.value))):
            far.append(index)
    if far:
        seen = f"GPUs {numbers(far)} share no PCIe switch with any of {len(devices)} devices"
        yield finding("gpu-nic-distance", case.node, seen, "one device near each GPU")


def _switch(path: str | None) -> list[str]:
    """Bridges of a path below its root port: `pci0000:15`, root port, [bridges ...], the function."""
    return (path or "").split("/")[2:-1]
