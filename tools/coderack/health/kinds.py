"""Every finding this room can make: what it means for serving, what to do, and where that is known from.

Rules name a kind by its id; severity and action here are what applies unless the rule says otherwise. Texts are what
`coderack health explain ID` prints, which is also the runbook that a finding names.
"""

from dataclasses import dataclass

from coderack.health.findings import Action, Severity

CRITICAL, WARNING, UNKNOWN, INFO = Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN, Severity.INFO

DEAD = "the engine on this GPU dies or hangs, and with it its whole parallel group"
NEXT_START = "running engines may go on; the next start fails or hangs in NCCL"
SLOW = "serving goes on, slower"
RISK = "serving works now; it may stop or slow down at the next event"
BLIND = "not known: the GPU may serve well or be about to fail"
ACROSS = "traffic between the nodes is slow or stops; a group over two nodes dies"
RESET = "drain the node, stop vLLM, `nvidia-smi --gpu-reset -i INDEX`, then `coderack health node`; restart the node if it stays"
REBOOT = "drain the node and restart it; if it returns, have the GPU or the instance replaced"
REPLACE = "drain the node and open a case with the vendor"


@dataclass(frozen=True, slots=True)
class Kind:
    title: str
    severity: Severity
    action: Action
    impact: str
    remedy: str
    source: str


A = Action
KINDS: dict[str, Kind] = {
    # The probes themselves
    "probe-hung": Kind(
        "a probe does not return", UNKNOWN, A.DRAIN, BLIND,
        "do not probe harder (it makes it worse): drain the node, read `dmesg` for Xid 119 or a blocked task, then restart it. "
        "The probe is started again when the old one has ended",
        "open-gpu-kernel-modules #446; NVSentinel #1576, #1748; dcgm-exporter #84",
    ),
    "probe-crashed": Kind(
        "a probe ended without an answer", UNKNOWN, A.WATCH, BLIND, "run it again; a crash in the driver's library shows in `dmesg`",
        "own rule: a check that crashes is no pass (oci-hpc's troubleshooting page shows one that was)",
    ),
    # NVML as a whole
    "nvml-binding-missing": Kind(
        "nvidia-ml-py is not installed", UNKNOWN, A.NONE, BLIND,
        "pip install 'coderack[node]'; the package called pynvml is another, deprecated one (vllm #9865)", "own rule",
    ),
    "nvml-library-missing": Kind(
        "libnvidia-ml.so.1 is not there", UNKNOWN, A.DRAIN, "vLLM cannot start either: the driver's libraries are not installed",
        "install the driver (role nvidia_driver)", "NVML error 12",
    ),
    "driver-not-loaded": Kind(
        "the NVIDIA kernel module is not loaded", CRITICAL, A.REBOOT, "no GPU is usable",
        "`modprobe nvidia`, read `dmesg`; after a kernel update the module may not be built for this kernel", "NVML error 9",
    ),
    "driver-library-mismatch": Kind(
        "library and kernel module are of different driver versions", CRITICAL, A.REBOOT,
        "running engines go on; nothing that starts anew can use a GPU, and monitoring is blind",
        "an upgrade replaced the library under the loaded module: drain the node and restart it",
        "NVML error 18; ubuntu-packaging-nvidia-driver #3",
    ),
    "nvml-init-failed": Kind(
        "NVML does not start", UNKNOWN, A.DRAIN, BLIND, "read `dmesg`; permissions of /dev/nvidia* when it says NO_PERMISSION", "NVML",
    ),
    "driver-version-module": Kind(
        "the loaded kernel module is not of the driver's version", CRITICAL, A.REBOOT, NEXT_START,
        "drain the node and restart it", "/proc/driver/nvidia/version; facts of issue gpu-operator #2781",
    ),
    # Which GPUs are there
    "gpu-missing": Kind(
        "fewer GPUs on the PCI bus than the profile says", CRITICAL, A.REBOOT, "this node cannot hold its part of the model",
        REBOOT, "NVML; PCI bus; NVSentinel #155",
    ),
    "gpu-not-in-driver": Kind(
        "a GPU is on the PCI bus and the driver does not have it", CRITICAL, A.REBOOT, "this node cannot hold its part of the model",
        f"the driver failed to start it, mostly without any Xid: {REBOOT}", "NVSentinel #155",
    ),
    "gpu-unexpected": Kind(
        "more GPUs than the profile says", WARNING, A.NONE, "none; the profile is not that of this machine",
        "correct the inventory's GPU profile or count", "own rule",
    ),
    "gpu-count-unknown": Kind("NVML does not say how many GPUs there are", UNKNOWN, A.WATCH, BLIND, "run it again", "NVML"),
    "gpu-off-bus": Kind(
        "a GPU does not answer on the PCI bus", CRITICAL, A.REBOOT, DEAD, REBOOT,
        "its configuration space reads as all ones (oci-hpc looks for `rev ff`)",
    ),
    "gpu-lost": Kind("the driver has lost a GPU", CRITICAL, A.REBOOT, DEAD, REBOOT, "NVML error 15; gpud #604, #1180"),
    "gpu-reset-required": Kind("a GPU wants to be reset", CRITICAL, A.RESET, DEAD, RESET, "NVML error 16"),
    "gpu-inforom-corrupted": Kind(
        "the GPU's InfoROM is corrupted", WARNING, A.REPLACE, RISK, REPLACE, "NVML error 14; Meta GCM",
    ),
    "gpu-unreachable": Kind(
        "a GPU's handle cannot be had", UNKNOWN, A.REBOOT, BLIND, REBOOT, "NVML error 999; gpud's SXid page, cihlab #53",
    ),
    "pci-bus-unreadable": Kind(
        "the PCI bus cannot be read", UNKNOWN, A.WATCH, "a GPU that the driver lost cannot be told from one that was never there",
        "/sys/bus/pci must be visible", "own rule",
    ),
    "gpu-model": Kind("another GPU model than the profile says", CRITICAL, A.NONE, "memory and speed are not those planned for",
                      "correct the profile, or have the instance replaced", "NVML name and PCI device id"),
    "gpu-memory-size": Kind("another memory size than the profile says", CRITICAL, A.REPLACE, "the model may not fit",
                            "restart the node; if it stays, replace the GPU", "NVML"),
    "gpu-vbios-differs": Kind("GPUs of this node have different VBIOS versions", WARNING, A.NONE, RISK,
                              "bring all to one version at the next drain", "Meta GCM; imbue host health"),
    # Modes
    "ecc-mode": Kind("ECC is off, or will change at the next reset", WARNING, A.RESET, "memory errors go unseen into the answers",
                     "drain, `nvidia-smi -e 1`, reset", "imbue host health"),
    "mig-mode": Kind("MIG mode is not what the profile says", CRITICAL, A.RESET,
                     "the GPU is cut into parts, and its NVLinks read as down", "drain, `nvidia-smi -mig 0`, reset",
                     "DCGM known bug 200682374; bottlerocket #4418"),
    "persistence-mode": Kind("persistence is off", WARNING, A.NONE, "each probe starts the GPU anew: slow, and counters are lost",
                             "start nvidia-persistenced", "gpud; driver 580's own message"),
    "compute-mode": Kind("the GPU lets only one or no process in", CRITICAL, A.NONE, "vLLM cannot open the GPU",
                         "`nvidia-smi -c DEFAULT`", "NVML compute mode"),
    # Memory
    "ecc-uncorrectable": Kind("uncorrectable memory errors since the driver was loaded", CRITICAL, A.RESET, DEAD, RESET,
                              "Meta GCM; AzNHC"),
    "ecc-correctable-storm": Kind("a storm of corrected memory errors", CRITICAL, A.DRAIN,
                                  "memory dies: slow, and management calls stall", "drain at once, then have the GPU replaced",
                                  "NVSentinel #1748"),
    "sram-threshold": Kind("the SRAM error threshold is exceeded", CRITICAL, A.REPLACE, RISK, REPLACE, "nvidia-smi -q; stas00 debug.md"),
    "sram-uncorrectable": Kind("uncorrectable SRAM errors over the GPU's life", WARNING, A.REPLACE, RISK, REPLACE,
                               "NVIDIA GPU memory error management"),
    "row-remap-pending": Kind("memory rows wait to be remapped", WARNING, A.RESET, "running work is safe",
                              f"at the next drain: {RESET}", "NVIDIA GPU memory error management"),
    "row-remap-failed": Kind("remapping a memory row has failed", CRITICAL, A.REPLACE, RISK, REPLACE,
                             "NVIDIA GPU memory error management; awsome-distributed-ai #1190"),
    "row-remap-banks": Kind("a memory bank has no rows left for remapping", WARNING, A.REPLACE,
                            "the next bad row in it cannot be remapped", REPLACE, "NVML row remapper histogram"),
    "memory-dying": Kind("one GPU's memory fails again and again", CRITICAL, A.REPLACE,
                         "dead repeatedly; shows in vLLM as an RPC time-out", REPLACE, "wtdcode/vllm-backport #62"),
    "channel-repair-pending": Kind("a memory channel waits to be repaired", WARNING, A.RESET, RISK, f"at the next drain: {RESET}",
                                   "nvmlDeviceGetRepairStatus"),
    "tpc-repair-pending": Kind("a compute unit waits to be repaired", WARNING, A.RESET, RISK, f"at the next drain: {RESET}",
                               "nvmlDeviceGetRepairStatus"),
    "recovery-action": Kind("the driver asks for a recovery of this GPU", CRITICAL, A.RESET, DEAD, "do what it asks for",
                            "NVML field 230; DCGM #263"),
    # Heat, power, clocks
    "thermal-slowdown": Kind("the GPU slows down because of heat", WARNING, A.DRAIN, SLOW, "check cooling; drain if it lasts",
                             "gpud; AzNHC"),
    "power-brake": Kind("an external power brake cuts the GPU's clocks", WARNING, A.DRAIN, "slow: clocks are cut hard",
                        "check the power supplies and the rack's power", "gpud #330; NVSentinel #1668"),
    "hardware-slowdown": Kind("the hardware cuts the GPU's clocks", WARNING, A.DRAIN, SLOW, "check power and cooling", "NVML"),
    "thermal-margin": Kind("the GPU is at its highest allowed temperature", WARNING, A.DRAIN, SLOW, "check cooling",
                           "NVML margin temperature; NVSentinel"),
    "power-limit": Kind("the power limit is not that of the profile", WARNING, A.NONE, SLOW, "`nvidia-smi -pl WATTS`; find out who set it",
                        "nvidia-smi -q of the model"),
    "clock-limit": Kind("the highest clock is not that of the model", WARNING, A.RESET, SLOW, RESET, "nvidia-smi -q of the model"),
    "application-clock": Kind("application clocks are set below the default", WARNING, A.NONE, SLOW, "`nvidia-smi -rac`; find out who set them",
                              "Meta GCM clock policy"),
    "clock-stuck": Kind("the GPU is busy at a low clock and names no reason", WARNING, A.RESET, SLOW, RESET, "AzNHC #3; NVSentinel #890"),
    # PCIe
    "pcie-width": Kind("the GPU's PCIe link is narrower than it should be", WARNING, A.REBOOT, "slow host copies and loading",
                       "restart the node; reseat the GPU if it stays", "NVSentinel #890; Meta GCM"),
    "pcie-generation": Kind("the GPU's PCIe link is slower than it should be", WARNING, A.REBOOT, "slow host copies and loading",
                            "restart the node; reseat the GPU if it stays", "NVSentinel #890"),
    "pcie-replay": Kind("the GPU's PCIe link repeats too many packets", WARNING, A.DRAIN, SLOW, "reseat the GPU", "DCGM health limits"),
    "pcie-fatal": Kind("fatal PCIe errors of a GPU", CRITICAL, A.REBOOT, DEAD, REBOOT, "NVML field 180"),
    # NVLink
    "nvlink-absent": Kind("the GPU says that it has no NVLink", CRITICAL, A.REBOOT, NEXT_START,
                          "a virtual machine without its NVLinks needs another profile; otherwise restart the node",
                          "our capture; gpud #1085"),
    "nvlink-down": Kind("some NVLinks of a GPU are down", CRITICAL, A.RESET, NEXT_START, f"{RESET}; then service",
                        "NVIDIA Health Validation; azhpc-diagnostics #73"),
    "nvlink-all-down": Kind("all NVLinks of a GPU are down", CRITICAL, A.REBOOT, NEXT_START, REBOOT,
                            "gpud #1085; open-gpu-kernel-modules #1150"),
    "nvlink-unknown": Kind("the state of NVLinks cannot be read", UNKNOWN, A.WATCH, BLIND, "read `dmesg`; run it again",
                           "gpud skips such links, so that they vanish from its count"),
    "nvlink-count": Kind("another number of NVLinks than the profile says", CRITICAL, A.NONE, "the board is not the one planned for",
                         "correct the profile", "NVIDIA Health Validation; nccl #1617"),
    "nvlink-speed": Kind("an NVLink runs at another speed", CRITICAL, A.RESET, SLOW, RESET, "NVIDIA Health Validation"),
    "nvlink-remote": Kind("an NVLink does not end where it should", CRITICAL, A.DRAIN, NEXT_START,
                          "restart the node; if it stays, have the board serviced", "nccl #1182"),
    "nvlink-pattern": Kind("a GPU's links are spread over the NVSwitches in another way", WARNING, A.DRAIN, SLOW,
                           "compare with the other GPUs; restart the node", "nccl #1453"),
    "nvlink-recovery": Kind("an NVLink recovers again and again", WARNING, A.WATCH, RISK, "plan a reset; drain when it gets more",
                            "DCGM health limits"),
    "nvlink-recovery-trend": Kind("an NVLink's recoveries rise for days, which predicts its failure", WARNING, A.REPLACE, RISK,
                                  "plan service of this link before it fails", "marin-community/marin #9086: five days before the failure"),
    "nvlink-replay": Kind("an NVLink repeats packets", WARNING, A.WATCH, RISK, "watch; reset at the next drain", "DCGM health limits"),
    "nvlink-crc": Kind("an NVLink has checksum errors", WARNING, A.WATCH, RISK, "watch; drain when it gets more", "DCGM health limits"),
    "nvlink-flapping": Kind("an NVLink has had errors in most of the last passes", CRITICAL, A.DRAIN, SLOW, RESET,
                            "nvidia-resiliency-ext: bad in more than half of 30 windows"),
    "nvlink-counters": Kind("an NVLink's error counters cannot be read", UNKNOWN, A.WATCH, "a failing link cannot be predicted",
                            "check the driver version: the fields are 161 to 163", "DCGM #173; dcgm-exporter #316, #581"),
    "peer-to-peer": Kind("two GPUs cannot reach each other over NVLink", CRITICAL, A.DRAIN, NEXT_START,
                         "restart fabric manager in a drain window, then the node", "gpud; nccl #1182"),
    # Fabric
    "nvswitch-missing": Kind("fewer NVSwitches on the PCI bus than the board has", CRITICAL, A.REBOOT, NEXT_START, REBOOT, "gpud; nccl #1453"),
    "nvswitch-off-bus": Kind("an NVSwitch does not answer on the PCI bus", CRITICAL, A.REBOOT, DEAD, REBOOT,
                             "its configuration space reads as all ones"),
    "fabric-not-ready": Kind("the GPU has not joined the NVLink fabric", CRITICAL, A.DRAIN,
                             "CUDA answers 802 (system not yet initialised): vLLM cannot start",
                             "start or restart nvidia-fabricmanager; if it stays, restart the node",
                             "huggingface_hub #4128; NVSentinel #889 (20 days unnoticed)"),
    "fabric-failed": Kind("joining the NVLink fabric failed", CRITICAL, A.REBOOT, DEAD, "restart the node; in a cloud, replace the instance",
                          "azhpc-images #506; eks-node-monitoring-agent #141"),
    "fabric-unsupported": Kind("the GPU says that it has no NVLink fabric", CRITICAL, A.DRAIN, NEXT_START,
                               "fabric manager never ran, or the profile is not that of this machine", "our capture; gpud #1140"),
    "fabric-unknown": Kind("the fabric state cannot be read", UNKNOWN, A.WATCH, BLIND, "run it again; drivers before 550 lack the call", "gpud #1147"),
    "fabric-bandwidth": Kind("the fabric reports degraded bandwidth", CRITICAL, A.DRAIN, SLOW, "restart the node", "go-nvml: fabric health mask"),
    "fabric-route": Kind("the fabric reports an unhealthy route", CRITICAL, A.DRAIN, DEAD, "restart the node", "go-nvml: fabric health mask"),
    "fabric-recovering": Kind("the fabric recovers a route or from an access time-out", WARNING, A.WATCH, SLOW, "wait; drain if it lasts",
                              "go-nvml: fabric health mask"),
    "fabric-configuration": Kind("the fabric reports a wrong configuration", CRITICAL, A.DRAIN, NEXT_START,
                                 "check fabric manager's configuration and log", "go-nvml: fabric health mask"),
    "fabric-partition": Kind("GPUs of this node are in different fabric partitions", CRITICAL, A.DRAIN, NEXT_START,
                             "restart fabric manager in a drain window", "torchcomms #936: all alike on HGX"),
    "fabric-manager-stopped": Kind("fabric manager does not run", CRITICAL, A.DRAIN,
                                   "running engines go on; NVLink errors are not handled, and the next start may fail",
                                   "`systemctl restart nvidia-fabricmanager` in a drain window: never under running engines",
                                   "NVSentinel #883 (dead for 2.5 weeks with state Completed), #1380; gpud #1151"),
    "fabric-manager-missing": Kind("fabric manager is not installed", CRITICAL, A.DRAIN,
                                   "CUDA answers 802 (system not yet initialised): vLLM cannot start",
                                   "install it in the driver's version (role nvidia_driver)", "gpu-burn #92, #133; pytorch #35710"),
    "fabric-manager-unknown": Kind("whether fabric manager runs cannot be found out", UNKNOWN, A.WATCH, BLIND, "run `systemctl status nvidia-fabricmanager`",
                                   "NVSentinel #883"),
    "fabric-manager-version": Kind("fabric manager and driver are of different versions", CRITICAL, A.DRAIN, NEXT_START,
                                   "install both in one version (role nvidia_driver), then restart the node",
                                   "gpu-operator #544; nvtrust #55; ollama #12136"),
    "nscq-version": Kind("libnvidia-nscq and driver are of different versions", WARNING, A.NONE, "NVSwitches cannot be monitored by DCGM",
                         "install it in the driver's version (role nvidia_driver)", "DCGM documentation"),
    "packages-unknown": Kind("installed packages cannot be listed", UNKNOWN, A.WATCH, BLIND, "run `dpkg-query -W 'nvidia-fabricmanager*'`", "own rule"),
    "persistenced-stopped": Kind("nvidia-persistenced does not run", WARNING, A.NONE, "slower probes; counters are lost when nobody uses the GPU",
                                 "`systemctl start nvidia-persistenced`", "NVSentinel #1382; driver 580's own message"),
    # InfiniBand, EFA
    "hca-missing": Kind("network devices of the fabric are missing", CRITICAL, A.REBOOT, ACROSS,
                        "restart the node; if it stays, check the card", "gpud #200; infra-controller #3624"),
    "hca-unexpected": Kind("more network devices of the fabric than the inventory says", WARNING, A.NONE, "none",
                           "correct fabric.devices in the inventory: nine instead of eight changed NCCL's choice", "infra-controller #3624"),
    "ib-port-down": Kind("an InfiniBand port is down", CRITICAL, A.DRAIN, ACROSS, "check cable and switch port", "nccl #1935, #905; rccl #1423"),
    "ib-port-init": Kind("an InfiniBand port waits for the subnet manager", CRITICAL, A.DRAIN, ACROSS, "check the subnet manager", "Meta GCM iblink"),
    "ib-port-unknown": Kind("an InfiniBand port's state cannot be read", UNKNOWN, A.WATCH, ACROSS, "read `dmesg` for mlx5_core", "node_exporter #3265"),
    "ib-layer": Kind("a fabric port is not in InfiniBand mode", CRITICAL, A.NONE, ACROSS, "`mlxconfig set LINK_TYPE_P1=1`, restart; or correct fabric.devices",
                     "node_exporter #3434"),
    "ib-rate": Kind("an InfiniBand port is slower than it should be", CRITICAL, A.DRAIN, SLOW, "check cable, optics and switch port", "gpud; AzNHC"),
    "ib-flap": Kind("an InfiniBand port has lost its link", WARNING, A.WATCH, RISK, "check cable and optics; drain from the third time in a day",
                    "gpud's flap rule; soperator #481"),
    "ib-errors": Kind("errors of an InfiniBand port rise", WARNING, A.WATCH, RISK, "check cable and optics", "NVSentinel NIC monitor"),
    "ib-counter-full": Kind("a port's error counter has reached its end", WARNING, A.NONE, "further errors cannot be seen in it",
                            "`perfquery -R`; use other evidence meanwhile", "gpud #943: 255, 65535 and 15 on a real node"),
    "ib-counters": Kind("a port's error counters cannot be read", UNKNOWN, A.WATCH, "a failing cable cannot be seen", "check the driver and PMA",
                        "node_exporter #966, #2023; procfs #700"),
    "hca-firmware-differs": Kind("network cards of this node have different firmware", WARNING, A.NONE, RISK, "bring all to one version", "Meta GCM"),
    "hca-pcie-width": Kind("a network card's PCIe link is narrower than it should be", WARNING, A.REBOOT, SLOW, "reseat the card", "imbue host health"),
    "gpu-nic-distance": Kind("a GPU shares no PCIe switch with any network device", WARNING, A.NONE, SLOW,
                             "check the slots; in a cloud give NCCL the topology file", "AzNHC topology; NCCL dumps"),
    "gpu-direct": Kind("GPUDirect RDMA is not possible", WARNING, A.DRAIN, "slow between the nodes: 180 GB/s became 10",
                       "use the open kernel module (DMA-BUF), or load nvidia_peermem", "nccl #1676, #1537, #1939"),
    "efa-verbs": Kind("there is no verbs interface for EFA", CRITICAL, A.DRAIN, ACROSS, "load ib_uverbs; install the EFA driver", "aws-ofi-nccl #1020; nccl #1597"),
    "efa-port-down": Kind("an EFA device is not active", CRITICAL, A.REPLACE, ACROSS, "restart the node; then replace the instance", "AWS EFA guide"),
    "efa-errors": Kind("errors of an EFA device rise", WARNING, A.DRAIN, SLOW, "drain; replace the instance if it lasts", "EKS node monitoring agent"),
    "iommu": Kind("the IOMMU translates on bare metal", WARNING, A.REBOOT, "NCCL is slow or hangs", "kernel parameter iommu=pt, restart", "nccl #489, #928, #1737"),
    "acs": Kind("PCIe access control sends GPU traffic through the root complex", WARNING, A.REBOOT, "NCCL is slow or hangs",
                "switch ACS off in the firmware, or with setpci at boot", "nccl #489; NCCL troubleshooting guide"),
    "acs-unknown": Kind("PCIe access control cannot be read", UNKNOWN, A.WATCH, "NCCL may be slow or hang", "run as root", "own rule"),
    # The node
    "clock-unsynchronised": Kind("the clock is not synchronised", WARNING, A.NONE, "logs of two nodes do not fit together; tokens and certificates may fail",
                                 "`chronyc sources`", "EKS node monitoring agent"),
    "clock-unknown": Kind("whether the clock is synchronised cannot be found out", UNKNOWN, A.WATCH, "logs of two nodes may not fit together", "`chronyc tracking`",
                          "EKS node monitoring agent"),
    "clock-jumped": Kind("the clock was set back", WARNING, A.NONE, "times of events are not comparable; rates are not affected", "`chronyc tracking`", "own rule"),
    "kernel-log-unreadable": Kind("the kernel log cannot be read", UNKNOWN, A.WATCH, "Xids go unseen", "run as root, or give --kmsg", "own rule"),
    "kernel-log-gap": Kind("kernel log lines were overwritten before they were read", WARNING, A.NONE, "an Xid may have gone unseen",
                           "run more often, or enlarge log_buf_len", "gpud #1164: floods of one line"),
    "history-damaged": Kind("records of the history were torn", WARNING, A.NONE, "none; rates begin anew for what the record held", "none: the file was written anew", "own rule"),
    "history-not-kept": Kind("the history cannot be written", WARNING, A.NONE, "rates and trends are blind from now on", "make room or set --state-dir", "own rule"),
    "history-unreadable": Kind("the history cannot be read", WARNING, A.NONE, "rates and trends begin anew", "check permissions of --state-dir", "own rule"),
    "probe-busy": Kind("another pass holds the history", INFO, A.NONE, "none", "none", "own rule"),
    # Between nodes
    "nodes-differ": Kind("nodes of one group differ", WARNING, A.NONE, RISK, "make them equal at the next drain", "Meta GCM; imbue; own rule"),
    "node-unreachable": Kind("a node did not answer", UNKNOWN, A.WATCH, "not known", "try `ssh NODE`; a remote time-out is no reason to restart it", "NVSentinel #1574"),
    "node-garbled": Kind("a node answered something else than a report", UNKNOWN, A.WATCH, "not known", "is the same coderack installed there?", "own rule"),
}  # fmt: skip
