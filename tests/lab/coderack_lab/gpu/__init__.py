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
