"""A GPU node without a GPU: NVML, sysfs, procfs and a kernel log, for tests of the health tool and for the lab.

state = profile("h100-sxm-8")                 # also h200-sxm-8, h200-vm-1, h100-pcie-8, none
state.set("gpu.3.link.5.state", 0)            # keys: ../../gpu_sim/README.md
state.set("gpu.3.link.5.recovery", rising(0, 2))
state.set("gpu.6.call.*.sleep", "forever")
environment = simulated(state, tmp_path)      # LD_LIBRARY_PATH and CODERACK_LAB_NVML_STATE for a child process
fake_sysfs(tmp_path / "sys", "infiniband")    # also efa, pcie, vm, none
fake_proc(tmp_path / "proc", "infiniband")
log = KernelLog(tmp_path / "kmsg"); log.add("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
"""

from coderack_lab.gpu.costs import with_real_costs
from coderack_lab.gpu.kmsg import KernelLog
from coderack_lab.gpu.library import build_library, simulated, without_library
from coderack_lab.gpu.procfs import fake_proc
from coderack_lab.gpu.profiles import PROFILES, profile
from coderack_lab.gpu.state import State, error, rising
from coderack_lab.gpu.sysfs import Sysfs, fake_sysfs

__all__ = [
    "PROFILES",
    "KernelLog",
    "State",
    "Sysfs",
    "build_library",
    "error",
    "fake_proc",
    "fake_sysfs",
    "profile",
    "rising",
    "simulated",
    "with_real_costs",
    "without_library",
]
