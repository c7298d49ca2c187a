"""Readings of one GPU, of the driver, and of all pairs, through NVIDIA's nvidia-ml-py.

Runs in a child process only: any call here may take 45 seconds or never return (open-gpu-kernel-modules #446).
The version traps of NVML are handled here and nowhere else: every field value has an error of its own, a success with
type 0 and value 0 is no reading, and signed values come in an unsigned field.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from coderack.health.readings import Answer, bus_id

# At most this many; how many there are is told by INVALID_ARGUMENT (18 on Hopper, nvidia-ml-py's constant says 36).
MAX_LINKS = 36

# Field ids, from nvml.h as in go-nvml; not from the binding's names, which come and go between its releases.
_LINK_FIELDS = {161: "replay", 162: "recovery", 163: "crc", 164: "speed", 165: "state"}
_FIELDS = {
    94: "pcie.replay",
    169: "pcie.l0_to_recovery",
    179: "pcie.nonfatal",
    180: "pcie.fatal",
    142: "remapped.correctable",
    143: "remapped.uncorrectable",
    194: "tlimit.slowdown",
    230: "recovery_action",
    269: "throttled_ns.software_thermal",
    270: "throttled_ns.hardware_thermal",
    271: "throttled_ns.power_brake",
}
_CLOCKS = {"sm": 1, "memory": 2}


class Recorder:
    """Collects answers and tells the parent which step runs, so that a hang can be named."""

    def __init__(self, step: Callable[[str], None]) -> None:
        self.answers: dict[str, Answer] = {}
        self.step = step

    def ask(self, key: str, call: Callable[[], Any]) -> Any:
        """Record the value or the error of one call; return the value or None."""
        try:
            value = call()
        except Exception as error:  # NVML's errors are classes made at run time; anything else is a reading lost, too
            self.answers[key] = Answer(error=error_name(error))
            return None
        self.answers[key] = Answer(_plain(value))
        return value

    def split(self, keys: Iterable[str], call: Callable[[], Iterable[Any]]) -> None:
        """One call that answers several keys."""
        keys = list(keys)
        try:
            values = list(call())
        except Exception as error:
            self.answers |= {key: Answer(error=error_name(error)) for key in keys}
            return
        self.answers |= {key: Answer(_plain(value)) for key, value in zip(keys, values, strict=False)}


def _plain(value: Any) -> int | float | str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, (int, float, str)) else str(value)


_ERRORS = {
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    23: "INSUFFICIENT_RESOURCES",
    25: "ARGUMENT_VERSION_MISMATCH",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    999: "UNKNOWN",
}


def error_name(error: BaseException) -> str:
    code = getattr(error, "value", None)
    if isinstance(code, int):
        return _ERRORS.get(code, f"CODE_{code}")
    return f"{type(error).__name__}: {error}"[:200]


def prepare() -> None:
    """Import the binding once, before children are forked. The driver's library is not loaded by that."""
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: F401, PLC0415


def load() -> tuple[Any, Answer]:
    """The binding after nvmlInit, or the reason why there is none."""
    try:
        import pynvml  # noqa: PLC0415  (extra `node`; the package works without for nodes without GPUs)
    except ImportError:
        return None, Answer(error="BINDING_NOT_INSTALLED")
    if not hasattr(pynvml, "nvmlDeviceGetFieldValues"):
        return None, Answer(error="BINDING_TOO_OLD")
    try:
        pynvml.nvmlInit()
    except Exception as error:
        return None, Answer(error=error_name(error))
    return pynvml, Answer(1)


def read_driver(step: Callable[[str], None]) -> dict[str, Answer]:
    """NVML as a whole: does it start, which driver, how many GPUs."""
    record = Recorder(step)
    step("nvmlInit")
    nvml, record.answers["init"] = load()
    if nvml is None:
        return record.answers
    step("driver version and GPU count")
    record.ask("version", nvml.nvmlSystemGetDriverVersion)
    record.ask("nvml_version", nvml.nvmlSystemGetNVMLVersion)
    record.ask("count", nvml.nvmlDeviceGetCount)
    return record.answers


def read_pairs(step: Callable[[str], None]) -> dict[str, Answer]:
    """NVLink peer-to-peer status of every pair, both directions: keys `0.1`."""
    record = Recorder(step)
    step("nvmlInit")
    nvml, record.answers["init"] = load()
    if nvml is None:
        return record.answers
    step("handles")
    handles: dict[int, Any] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = record.ask(f"handle.{index}", partial(nvml.nvmlDeviceGetHandleByIndex, index))
        record.answers.pop(f"handle.{index}")
        if handle is not None:
            handles[index] = handle
    for one, first in handles.items():
        step(f"peer-to-peer status of GPU {one}")
        for other, second in handles.items():
            if one != other:
                record.ask(
                    f"{one}.{other}",
                    partial(nvml.nvmlDeviceGetP2PStatus, first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
                )
    return record.answers


def read_gpu(index: int, step: Callable[[str], None]) -> dict[str, Answer]:
    """Everything of one GPU. An absent GPU answers `handle` with an error and nothing else."""
    record = Recorder(step)
    step("nvmlInit")
    nvml, init = load()
    if nvml is None:
        return {"handle": Answer(error=init.error)}
    step("handle")
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        return {"handle": Answer(error=error_name(error))}
    record.answers["handle"] = Answer(1)
    for name, read in _SECTIONS:
        step(name)
        read(nvml, handle, record)
    return record.answers


def _identity(nvml: Any, gpu: Any, record: Recorder) -> None:
    record.ask("uuid", lambda: nvml.nvmlDeviceGetUUID(gpu))
    record.ask("name", lambda: nvml.nvmlDeviceGetName(gpu))
    record.ask("vbios", lambda: nvml.nvmlDeviceGetVbiosVersion(gpu))
    record.ask("inforom", lambda: nvml.nvmlDeviceGetInforomImageVersion(gpu))
    pci = record.ask("bus_id", lambda: nvml.nvmlDeviceGetPciInfo(gpu))
    if pci is not None:
        record.answers["bus_id"] = Answer(bus_id(_plain(pci.busId)))  # type: ignore[arg-type]
        record.answers["device_id"] = Answer(f"0x{pci.pciDeviceId >> 16:04x}")


def _modes(nvml: Any, gpu: Any, record: Recorder) -> None:
    record.split(("ecc.mode", "ecc.pending"), lambda: nvml.nvmlDeviceGetEccMode(gpu))
    record.split(("mig.mode", "mig.pending"), lambda: nvml.nvmlDeviceGetMigMode(gpu))
    record.ask("persistence_mode", lambda: nvml.nvmlDeviceGetPersistenceMode(gpu))
    record.ask("compute_mode", lambda: nvml.nvmlDeviceGetComputeMode(gpu))
    record.ask("pstate", lambda: nvml.nvmlDeviceGetPerformanceState(gpu))
    record.ask("memory.total", lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total)


def _memory(nvml: Any, gpu: Any, record: Recorder) -> None:
    keys = ("remapped.correctable", "remapped.uncorrectable", "remapped.pending", "remapped.failure")
    record.split(keys, lambda: nvml.nvmlDeviceGetRemappedRows(gpu))
    histogram = record.ask("banks", lambda: nvml.nvmlDeviceGetRowRemapperHistogram(gpu))
    if histogram is not None:
        del record.answers["banks"]
        for name in ("max", "high", "partial", "low", "none"):
            record.answers[f"banks.{name}"] = Answer(int(getattr(histogram, name)))
    for kind, number in (("corrected", 0), ("uncorrected", 1)):
        for span, counter in (("volatile", 0), ("aggregate", 1)):
            record.ask(f"ecc.{kind}.{span}", partial(nvml.nvmlDeviceGetTotalEccErrors, gpu, number, counter))
    _sram(nvml, gpu, record)
    _repair(nvml, gpu, record)


def _sram(nvml: Any, gpu: Any, record: Recorder) -> None:
    def read() -> tuple[int, int]:
        status = nvml.c_nvmlEccSramErrorStatus_v1_t()
        nvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))
        return status.aggregateUncParity + status.aggregateUncSecDed, status.bThresholdExceeded

    record.split(("sram.uncorrectable", "sram.threshold_exceeded"), read)


def _repair(nvml: Any, gpu: Any, record: Recorder) -> None:
    record.split(("repair.channel", "repair.tpc"), lambda: nvml.nvmlDeviceGetRepairStatus(gpu))


def _load(nvml: Any, gpu: Any, record: Recorder) -> None:
    record.ask("clock_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    record.ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(gpu, 0))
    record.ask("thermal_margin", lambda: nvml.nvmlDeviceGetMarginTemperature(gpu))
    record.ask("power.limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu))
    record.ask("power.usage", lambda: nvml.nvmlDeviceGetPowerUsage(gpu))
    record.ask("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    for name, clock in _CLOCKS.items():
        record.ask(f"clock.{name}", partial(nvml.nvmlDeviceGetClockInfo, gpu, clock))
        record.ask(f"clock.{name}.max", partial(nvml.nvmlDeviceGetMaxClockInfo, gpu, clock))
        record.ask(f"clock.{name}.application", partial(nvml.nvmlDeviceGetApplicationsClock, gpu, clock))
        record.ask(f"clock.{name}.default", partial(nvml.nvmlDeviceGetDefaultApplicationsClock, gpu, clock))


def _pcie(nvml: Any, gpu: Any, record: Recorder) -> None:
    record.ask("pcie.generation", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu))
    record.ask("pcie.generation.max", lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu))
    record.ask("pcie.width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))


def _fabric(nvml: Any, gpu: Any, record: Recorder) -> None:
    """Newest structure first: a driver answers a version that it does not know with an error."""
    for version in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        kind = getattr(nvml, version, None)
        if kind is None:
            continue
        info = kind()
        try:
            nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
        except Exception as error:
            failure = Answer(error=error_name(error))
            # FUNCTION_NOT_FOUND: drivers before 550. They may still have the call without a version.
            if failure.error in ("ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND"):
                continue
            record.answers["fabric.state"] = failure
            return None
        return _record_fabric(info, record)
    info = nvml.c_nvmlGpuFabricInfo_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(info))
    except Exception as error:
        record.answers["fabric.state"] = Answer(error=error_name(error))
        return None
    return _record_fabric(info, record)


def _record_fabric(info: Any, record: Recorder) -> None:
    record.answers["fabric.state"] = Answer(int(info.state))
    record.answers["fabric.status"] = Answer(int(info.status))
    record.answers["fabric.clique"] = Answer(int(info.cliqueId))
    record.answers["fabric.cluster"] = Answer(bytes(info.clusterUuid).hex())
    record.answers["fabric.health_mask"] = Answer(int(getattr(info, "healthMask", 0)))


def _fields(nvml: Any, gpu: Any, record: Recorder) -> None:
    """The single fields. One batch: the call has a fixed cost, and each item has its own error."""
    for (field, key), answer in zip(_FIELDS.items(), _field_values(nvml, gpu, list(_FIELDS)), strict=True):
        # Field 142 and 143 repeat the dedicated call, which wins when it answered.
        if field in (142, 143) and record.answers.get(key, Answer(error="")).error is None:
            continue
        record.answers[key] = answer


def _links(nvml: Any, gpu: Any, record: Recorder) -> None:
    links = _link_count(nvml, gpu, record)
    wanted = [(field, link) for link in range(links) for field in _LINK_FIELDS]
    for (field, link), answer in zip(wanted, _field_values(nvml, gpu, wanted), strict=True):
        record.answers[f"link.{link}.{_LINK_FIELDS[field]}"] = answer
    # Two ways to ask for the state: the field, and for drivers without it the dedicated call.
    for link in range(links):
        key = f"link.{link}.state"
        if record.answers[key].error is not None:
            record.ask(key, partial(nvml.nvmlDeviceGetNvLinkState, gpu, link))
        if record.answers[key].value in (1, 2):
            record.ask(f"link.{link}.remote", partial(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, gpu, link))
            pci = record.ask("_", partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, gpu, link))
            if pci is not None:
                record.answers[f"link.{link}.peer"] = Answer(bus_id(_plain(pci.busId)))  # type: ignore[arg-type]
    record.answers.pop("_", None)


def _link_count(nvml: Any, gpu: Any, record: Recorder) -> int:
    """Links up to the first INVALID_ARGUMENT; 0 when link 0 says that there is no NVLink at all."""
    answers = _field_values(nvml, gpu, [(165, link) for link in range(MAX_LINKS)])
    errors = [answer.error for answer in answers]
    # A driver that does not know the field says INVALID_ARGUMENT to all of them: the dedicated call decides then.
    if errors[0] in ("INVALID_ARGUMENT", "NOT_SUPPORTED"):
        errors = [_state_error(nvml, gpu, link) for link in range(MAX_LINKS)]
    links = 0 if errors[0] == "NOT_SUPPORTED" else _until(errors, "INVALID_ARGUMENT")
    record.answers["links"] = Answer(links)
    return links


def _state_error(nvml: Any, gpu: Any, link: int) -> str | None:
    try:
        nvml.nvmlDeviceGetNvLinkState(gpu, link)
    except Exception as error:
        return error_name(error)
    return None


def _until(items: list[str | None], end: str) -> int:
    return items.index(end) if end in items else len(items)


def _field_values(nvml: Any, gpu: Any, fields: list[Any]) -> list[Answer]:
    if not fields:
        return []
    try:
        values = nvml.nvmlDeviceGetFieldValues(gpu, fields)
    except Exception as error:
        return [Answer(error=error_name(error)) for _ in fields]
    return [_field_answer(value) for value in values]


# valueType -> member of the union (nvml.h, nvmlValueType_t).
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 6: "usVal"}
_DOUBLE, _SIGNED = 0, 5


def _field_answer(item: Any) -> Answer:
    if item.nvmlReturn != 0:
        return Answer(error=_ERRORS.get(item.nvmlReturn, f"CODE_{item.nvmlReturn}"))
    kind, value = item.valueType, item.value
    if kind == _DOUBLE:
        # On 580 ten fields answer success, type double and all bits zero, and mean nothing.
        return Answer(float(value.dVal)) if value.dVal else Answer(error="EMPTY_SUCCESS")
    if kind == _SIGNED:
        # Bindings before 12.550 have no signed member.
        return Answer(_signed(int(value.uiVal)))
    if kind in _MEMBERS:
        return Answer(int(getattr(value, _MEMBERS[kind])))
    return Answer(error=f"VALUE_TYPE_{kind}")


def _signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number


_SECTIONS: tuple[tuple[str, Callable[[Any, Any, Recorder], None]], ...] = (
    ("identity", _identity),
    ("modes", _modes),
    ("memory errors", _memory),
    ("clocks, power and temperature", _load),
    ("PCIe link", _pcie),
    ("fabric", _fabric),
    ("field values", _fields),
    ("NVLinks", _links),
)
