"""The simulated VM with one H200 answers every captured call as the real one did."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coderack_lab import gpu
from coderack_lab.settings import ROOT

from .nvml_calls import Answer, Request, ask

CAPTURE = ROOT.parent / "shared" / "captures" / "h200-one-gpu" / "nvml.json"

Call = dict[str, Any]


@pytest.fixture(scope="module")
def captured() -> list[Call]:
    if not CAPTURE.exists():
        pytest.skip(f"NOT TESTED against a real GPU: {CAPTURE} is not there; wanted: the project's H200 capture")
    calls: list[Call] = json.loads(CAPTURE.read_text())["calls"]
    return calls


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return gpu.simulated(gpu.profile("h200-vm-1"), tmp_path_factory.mktemp("vm"))


def as_request(call: Call) -> Request:
    if call["call"] == "fieldvalues":
        return "fields", [[item["id"], 0] for item in call["value"].values()]
    if call["call"] == "per-link fields":
        return "fields", [[_id(call_name), link] for call_name, link, *_ in call["value"]]
    if call["call"] in ("fabricinfo", "nvmlDeviceGetGpuFabricInfoV"):
        return "fabric", ["c_nvmlGpuFabricInfo_v2_t"]
    return call["call"], call["args"]


def _id(name: str) -> int:
    per_link = {"GET_SPEED": 164, "GET_STATE": 165, "COUNT_XMIT_PACKETS": 201, "COUNT_RCV_ERRORS": 208}
    per_link |= {"COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS": 213, "COUNT_SYMBOL_BER": 222, "COUNT_EFFECTIVE_BER": 220}
    per_link |= {"ERROR_DL_REPLAY": 161, "ERROR_DL_RECOVERY": 162, "ERROR_DL_CRC": 163}
    return per_link[name.removeprefix("NVML_FI_DEV_NVLINK_")]


def as_captured(call: Call, answer: Answer) -> Any:
    """The answer in the words of the capture."""
    value = answer["value"]
    if call["call"] == "fieldvalues":
        return dict(zip(call["value"], value, strict=True))
    if call["call"] == "per-link fields":
        return [[*asked[:2], item["ret"], item["ull"]] for asked, item in zip(call["value"], value, strict=True)]
    if call["call"] == "nvmlDeviceGetGpuFabricInfoV":
        return 0 if answer["error"] is None else None
    if call["call"] == "fabricinfo":
        assert value["clusterUuid"] == "0" * 32
        return {key: str(number) for key, number in value.items()} | {"clusterUuid": call["value"]["clusterUuid"]}
    return value


def test_each_call_answers_as_on_the_real_gpu(captured: list[Call], environment: dict[str, str]) -> None:
    answers = ask(environment, [as_request(call) for call in captured])
    differing = [
        (call["call"], call.get("args"), call["value"], call.get("error"), answer)
        for call, answer in zip(captured, answers, strict=True)
        if (as_captured(call, answer), answer["error"]) != (call["value"], call.get("error"))
    ]
    assert len(captured) == 325
    assert not differing


def test_what_was_captured_by_nvidia_smi_agrees_too(environment: dict[str, str]) -> None:
    # captures/h200-one-gpu/q.xml: reserved memory, BAR1, power limits, T.Limit margin, object versions.
    answers = ask(
        environment,
        [
            ("nvmlDeviceGetMemoryInfo", [0x02000028]),
            ("nvmlDeviceGetBAR1MemoryInfo", []),
            ("nvmlDeviceGetPowerManagementLimitConstraints", []),
            ("nvmlDeviceGetMarginTemperature", []),
            ("nvmlDeviceGetInforomVersion", [1]),
            ("nvmlDeviceGetInforomVersion", [2]),
            ("nvmlDeviceGetRepairStatus", []),
        ],
    )
    values = [answer["value"] for answer in answers]
    assert values[0]["reserved"] == 616 << 20
    assert values[1]["bar1Total"] == 262144 << 20
    assert values[2:5] == [[200000, 700000], 51, "7.16"]
    assert answers[5]["error"] == "NVMLError_NotSupported:3"
    assert values[6] == [0, 0]
