"""What the calls cost on a real H200 (project capture h200-one-gpu, driver 580.159.04), in microseconds."""

from __future__ import annotations

from coderack_lab.gpu.state import State

CALLS_US = {
    "nvmlInitWithFlags": 9474.3,
    "nvmlSystemGetDriverVersion": 49.8,
    "nvmlSystemGetNVMLVersion": 10.2,
    "nvmlSystemGetCudaDriverVersion_v2": 21.4,
    "nvmlDeviceGetCount_v2": 5.3,
    "nvmlDeviceGetName": 39.6,
    "nvmlDeviceGetUUID": 16.3,
    "nvmlDeviceGetSerial": 50.1,
    "nvmlDeviceGetVbiosVersion": 109.8,
    "nvmlDeviceGetPciInfo_v3": 28.7,
    "nvmlDeviceGetCurrPcieLinkGeneration": 2304.9,
    "nvmlDeviceGetMaxPcieLinkGeneration": 16.1,
    "nvmlDeviceGetCurrPcieLinkWidth": 86.9,
    "nvmlDeviceGetMaxPcieLinkWidth": 36.0,
    "nvmlDeviceGetPcieReplayCounter": 474.0,
    "nvmlDeviceGetPersistenceMode": 17.7,
    "nvmlDeviceGetEccMode": 2048.7,
    "nvmlDeviceGetMigMode": 167.3,
    "nvmlDeviceGetMemoryInfo": 14.1,
    "nvmlDeviceGetUtilizationRates": 1990.8,
    "nvmlDeviceGetPowerUsage": 1842.6,
    "nvmlDeviceGetEnforcedPowerLimit": 7.1,
    "nvmlDeviceGetCurrentClocksEventReasons": 216.3,
    "nvmlDeviceGetRemappedRows": 1514.6,
    "nvmlDeviceGetRowRemapperHistogram": 13.0,
    "nvmlDeviceGetRetiredPagesPendingStatus": 450.4,
    "nvmlDeviceGetModuleId": 441.1,
    "nvmlDeviceGetGspFirmwareVersion": 17.0,
    "nvmlDeviceGetInforomImageVersion": 16.8,
    "nvmlDeviceGetNumGpuCores": 396.1,
    "nvmlDeviceGetComputeRunningProcesses_v3": 32.1,
    "nvmlDeviceGetTemperature": 472.4,
    "nvmlDeviceGetClockInfo": 90.3,  # mean of the four clocks: the first is read, the others follow
    "nvmlDeviceGetMaxClockInfo": 1752.7,  # mean of the four
    "nvmlDeviceGetTotalEccErrors": 8.9,
    "nvmlDeviceGetMemoryErrorCounter": 3.8,
    "nvmlDeviceGetGpuFabricInfoV": 18.1,
    "nvmlDeviceGetNvLinkState": 7.5,
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": 7.3,
    "nvmlDeviceGetNvLinkRemoteDeviceType": 7.3,
}
# Never measured, so taken as dear as the dearest plain reading of that kind.
ASSUMED_US = {
    "nvmlDeviceGetSramEccErrorStatus": 500.0,
    "nvmlDeviceGetRepairStatus": 500.0,
    "nvmlDeviceGetMarginTemperature": 470.0,
    "nvmlDeviceGetPerformanceState": 470.0,
    "nvmlDeviceGetApplicationsClock": 350.0,
    "nvmlDeviceGetDefaultApplicationsClock": 350.0,
    "nvmlDeviceGetP2PStatus": 20.0,
}
FIELD_US = 33219.9 / 282  # one batch of all fields
# A per-link field that is served was never measured; a normal remote procedure call to the GPU's firmware takes 520 to
# 700 microseconds (gpud's test log), and at worst each field is one. Unsupported ones took 11.
LINK_FIELDS = (146, 161, 162, 163, 164, 165, 166, 167)
LINK_FIELD_US = 600.0


def with_real_costs(state: State, link_field_us: float = LINK_FIELD_US) -> State:
    """Let every call cost what it costs on a real H200, and return the state.

    A call of one GPU does not wait for another's, though a real driver may take turns.
    """
    for call, cost in {**CALLS_US, **ASSUMED_US}.items():
        state.set(f"call.{call}.cost_us", cost)
    state.set("call.nvmlDeviceGetFieldValues.field.*.cost_us", f"{FIELD_US:.1f}")
    for field in LINK_FIELDS:
        state.set(f"call.nvmlDeviceGetFieldValues.field.{field}.cost_us", link_field_us)
    return state
