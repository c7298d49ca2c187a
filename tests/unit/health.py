"""A whole simulated GPU node for tests of the health room: NVML, sysfs, procfs, kernel log and services.

The simulated NVML library is loaded into the test process once, so that `examine` runs as on a node: real
nvidia-ml-py, real child processes, files and programs, and no patching.
"""

import ctypes
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from coderack.health import expectations
from coderack.health.findings import Finding
from coderack.health.node import Pass, Settings, examine
from coderack_lab import gpu

DRIVER = "580.159.04"
# Profile -> (state of the simulated NVML, kind of sysfs tree).
KINDS = {
    "h100-sxm": ("h100-sxm-8", "infiniband"),
    "h200-sxm": ("h200-sxm-8", "infiniband"),
    "h100-sxm-efa": ("h100-sxm-8", "efa"),
    "h100-pcie": ("h100-pcie-8", "pcie"),
    "h200-vm": ("h200-vm-1", "vm"),
    "none": ("none", "none"),
}
NETWORK = {
    "infiniband": (
        "network.kind=infiniband",
        "network.count=8",
        "network.rate_gbps=400",
        "network.pcie_width=16",
        "network.affinity=true",
    ),
    "efa": ("network.kind=efa", "network.count=32", "network.gpu_direct=true", "network.affinity=true"),
}
_RESULTS = {"active": "success", "failed": "signal", "inactive": "success", "activating": "success"}


@dataclass
class Simulated:
    """One node below `root`; break it by its handles, then `look`."""

    root: Path
    profile: str = "h100-sxm"
    settings: list[str] = field(default_factory=list)
    deadline: float = 20.0
    judged_as: str = ""  # another profile than this node's own

    def __post_init__(self) -> None:
        state_name, kind = KINDS[self.profile]
        self.kind = kind
        self.state = gpu.profile(state_name)
        self.sysfs = gpu.fake_sysfs(self.root / "sys", kind)
        gpu.fake_proc(self.root / "proc", kind)
        # Ten days after boot, as the tree's uptime says: what is logged next happened just now.
        self.log = gpu.KernelLog(self.root / "kmsg").add("eth0: link becomes ready", seconds=863_900)
        self.units = {"nvidia-fabricmanager": "active", "nvidia-persistenced": "active"}
        self.packages = {
            "nvidia-fabricmanager-580": f"{DRIVER}-1",
            "libnvidia-nscq-580": f"{DRIVER}-1",
            "libnccl2": "2.27.3-1+cuda12.9",
        }
        self.clock = _TRACKING.format(offset="0.000001234", leap="Normal")
        self.programs = self.root / "bin"
        self.programs.mkdir(parents=True)
        self.broken_programs: dict[str, str] = {}

    def proc(self, name: str, text: str) -> None:
        (self.root / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / "proc" / name).write_text(text)

    def uptime(self, seconds: float) -> None:
        self.proc("uptime", f"{seconds:.2f} 0.00\n")

    def reboot(self, boot: str = "99999999-2222-4333-8444-555555555555", uptime: float = 3600) -> None:
        self.proc("sys/kernel/random/boot_id", f"{boot}\n")
        self.uptime(uptime)
        self.log.reboot()

    def write(self) -> None:
        """Put state and programs in place, as `look` does; for those who start a process of their own."""
        self.state.write(self.root / "state")
        self._program("systemctl", self._units())
        listed = "".join(f"ii \t{name}\t{version}\n" for name, version in self.packages.items())
        self._program("dpkg-query", listed)
        self._program("chronyc", self.clock)

    def _units(self) -> str:
        blocks = []
        for name in ("nvidia-fabricmanager", "nvidia-persistenced"):
            state = self.units.get(name)
            if state is None:
                blocks.append(
                    f"Id={name}.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nResult=success\n"
                )
                continue
            sub = {"active": "running", "failed": "failed"}.get(state, "dead")
            blocks.append(
                f"Id={name}.service\nLoadState=loaded\nActiveState={state}\nSubState={sub}\nResult={_RESULTS[state]}\n"
            )
        return "\n".join(blocks)

    def _program(self, name: str, output: str) -> None:
        path = self.programs / name
        (self.programs / f"{name}.out").write_text(output)
        script = self.broken_programs.get(name, f'exec /bin/cat "{path}.out"')
        if script == "absent":
            path.unlink(missing_ok=True)
            return
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def all_settings(self) -> list[str]:
        return [*NETWORK.get(self.kind, ()), *self.settings]

    def base(self) -> str:
        return self.judged_as or self.profile.removesuffix("-efa")

    def look(self, after: float = 0.0) -> Pass:
        """One pass, `after` seconds of uptime later than the last."""
        if after:
            seconds = float((self.root / "proc/uptime").read_text().split()[0])
            self.uptime(seconds + after)
        self.write()
        before = {name: os.environ.get(name) for name in ("PATH", "CODERACK_LAB_NVML_STATE")}
        os.environ["PATH"] = str(self.programs)
        os.environ["CODERACK_LAB_NVML_STATE"] = str(self.root / "state")
        try:
            return examine(self.where())
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def where(self, **changes: Path) -> Settings:
        settings = Settings(
            profile=expectations.load(self.base(), self.all_settings()),
            sysfs=self.root / "sys",
            proc=self.root / "proc",
            kmsg=self.root / "kmsg",
            state_dir=self.root / "health",
            deadline=self.deadline,
            node="gpu-a",
        )
        return replace(settings, **changes)  # type: ignore[arg-type]

    def arguments(self) -> list[str]:
        """The same as options of `coderack health node`."""
        words = ["--profile", self.base()]
        for setting in self.all_settings():
            words += ["--set", setting]
        for option, name in (
            ("--sysfs-root", "sys"),
            ("--proc-root", "proc"),
            ("--kmsg", "kmsg"),
            ("--state-dir", "health"),
        ):
            words += [option, str(self.root / name)]
        return words


_TRACKING = "C0A80001,10.0.0.1,3,1764547200.0,{offset},0.0,0.00001,1.0,0.0,0.01,0.001,0.001,64.0,{leap}\n"


def not_synchronised() -> str:
    return _TRACKING.format(offset="0.0", leap="Not synchronised")


_loaded: list[Path] = []


def load_library(into: Path) -> Path:
    """Build the simulated NVML and load it here once, where nvidia-ml-py's own dlopen by name then finds it."""
    if not _loaded:
        built = gpu.build_library(into)
        ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)
        _loaded.append(built)
    return _loaded[0]


def library() -> Path:
    return _loaded[0]


def short(findings: tuple[Finding, ...]) -> list[str]:
    return [f"{one.id} {one.severity} {one.subject}: {one.seen} (wanted {one.wanted})" for one in findings]
