"""What a healthy GPU node looks like: the expectations that health rules compare readings with.

Pure data. The profiles themselves are YAML files of the health room; an environment picks one by name and overrides
what is different on its machines, so that no rule carries a number of one GPU model.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from coderack.spec.checked import Frozen

Count = Annotated[int, Field(ge=0, le=4096)]
Rate = Annotated[float, Field(gt=0)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:@/()+-]{0,99}$")]


class GpuWanted(Frozen):
    """One GPU. What is left out is not judged."""

    count: Annotated[int, Field(ge=0, le=16)]
    model: Word | None = None  # exactly as NVML names it
    device_id: Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{4}$")] | None = None
    memory_mib: Annotated[int, Field(ge=1)] | None = None
    power_limit_watts: Annotated[int, Field(ge=1)] | None = None
    max_sm_mhz: Annotated[int, Field(ge=1)] | None = None
    max_memory_mhz: Annotated[int, Field(ge=1)] | None = None
    ecc: bool = True
    mig: bool = False
    persistence: bool = True


class PcieWanted(Frozen):
    generation: Annotated[int, Field(ge=1, le=7)] | None = None
    width: Annotated[int, Field(ge=1, le=32)] | None = None


class NvlinkWanted(Frozen):
    """`links` is how many links of one GPU are active; `inactive` are those that this board has not connected."""

    links: Annotated[int, Field(ge=0, le=36)] = 0
    inactive: tuple[Annotated[int, Field(ge=0, le=35)], ...] = ()
    speed_mbps: Annotated[int, Field(ge=1)] | None = None  # NVML field 164
    remote: Literal["switch", "gpu", "any"] = "any"
    # Links of one GPU to each NVSwitch, smallest first.
    per_switch: tuple[Count, ...] = ()
    peer_to_peer: bool = False


class FabricWanted(Frozen):
    """The NVLink fabric of a board with NVSwitches."""

    nvswitches: Count = 0
    state: Literal["completed", "not_supported", "any"] = "any"
    fabric_manager: bool = False
    nscq: bool = False


class HostWanted(Frozen):
    platform: Literal["bare-metal", "vm"] = "bare-metal"
    persistenced: bool = False
    clock: Literal["chrony", "none"] = "chrony"


class Limits(Frozen):
    """Where a rate or a time becomes a finding. Per minute unless the name says otherwise."""

    boot_grace_seconds: float = 600  # NVSentinel #1701: 214 of 288 nodes alarmed while links trained
    window_seconds: Rate = 300
    nvlink_recovery_per_minute: Rate = 1  # DCGM health: >= 1 a minute fails
    nvlink_replay_per_minute: Rate = 1  # DCGM health
    nvlink_crc_per_minute: Rate = 1  # DCGM health: warning
    nvlink_crc_per_second: Rate = 100  # DCGM health: failure
    nvlink_windows: Annotated[int, Field(ge=2, le=60)] = 30  # nvidia-resiliency-ext: bad in more than half of 30
    nvlink_trend_days: Annotated[int, Field(ge=2, le=14)] = 3  # marin #9086: rose for days before the failure
    pcie_replay_per_minute_and_lane: Rate = 1.92  # DCGM, generation 5
    ecc_correctable_per_second: Rate = 1000  # NVSentinel #1748: 4,647 a second stalled the management calls
    sram_uncorrectable: Count = 4  # NVIDIA error recovery: more than 4 for life
    thermal_margin_warning: int = 0  # T.Limit: 0 is the highest temperature of normal operation
    thermal_margin_critical: int = -2  # there the hardware begins to slow down
    throttled_share: Annotated[float, Field(gt=0, le=1)] = 0.1  # of the window; our choice
    ib_link_downed_per_day: Annotated[int, Field(ge=1)] = 3  # gpud: three flaps
    ib_symbol_error_per_second: Rate = 10  # NVSentinel; NDR's PAM4 has some raw errors by design
    ib_link_error_recovery_per_minute: Rate = 5  # NVSentinel
    ib_receive_error_per_second: Rate = 10  # NVSentinel
    ib_transmit_discard_per_second: Rate = 100  # NVSentinel
    efa_error_per_second: Rate = 100  # EKS node monitoring agent: rx_drops, read/write errors, time-outs
    efa_retransmit_per_second: Rate = 1000  # EKS node monitoring agent: retrans_pkts


class Network(Frozen):
    """The network of the collectives. `devices` empty: any devices of that kind, `count` of them."""

    kind: Literal["infiniband", "efa", "none"] = "none"
    devices: tuple[Word, ...] = ()
    count: Count | None = None
    rate_gbps: Annotated[int, Field(ge=1)] | None = None
    pcie_width: Annotated[int, Field(ge=1, le=32)] | None = None
    gpu_direct: bool = True
    # Every GPU shares a PCIe switch with one of the devices. Not so in most virtual machines.
    affinity: bool = False

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.kind == "none" and (self.devices or self.count):
            raise ValueError("network.kind is none, wanted no devices and no count")
        if self.devices and self.count not in (None, len(self.devices)):
            raise ValueError(f"network.count is {self.count} and {len(self.devices)} devices are listed; wanted one")
        return self

    @property
    def wanted_count(self) -> int | None:
        return len(self.devices) or self.count


class GpuProfile(Frozen):
    """Everything that a healthy node of one kind shows."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
    description: str
    gpus: GpuWanted
    pcie: PcieWanted = PcieWanted()
    nvlink: NvlinkWanted = NvlinkWanted()
    fabric: FabricWanted = FabricWanted()
    host: HostWanted = HostWanted()
    network: Network = Network()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.nvlink.per_switch and sum(self.nvlink.per_switch) != self.nvlink.links:
            raise ValueError(
                f"nvlink.per_switch adds up to {sum(self.nvlink.per_switch)}, wanted nvlink.links = {self.nvlink.links}"
            )
        if self.gpus.count == 0 and (self.nvlink.links or self.fabric.nvswitches):
            raise ValueError("gpus.count is 0 and nvlink or fabric expects something; wanted neither")
        return self
