"""A kernel-log feed: a file of records as /dev/kmsg gives them, `priority,sequence,microseconds,flags;text` a line."""

from __future__ import annotations

from pathlib import Path

WARNING, ERROR, INFO = 4, 3, 6
_KERNEL = 0  # the facility; priority is facility * 8 + level


class KernelLog:
    """Records of one boot, appended as the kernel would. A new boot starts with `reboot()`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._sequence = 0
        self._time_us = 0
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def add(self, text: str, *, level: int = WARNING, seconds: float | None = None, **tags: str) -> KernelLog:
        """Append one record, by default a second after the last; `seconds` is since boot.

        Tags are the lines that follow a record in /dev/kmsg, such as SUBSYSTEM=pci. Characters outside printable ASCII
        are escaped as the kernel does, so one record stays one line.
        """
        self._time_us = self._time_us + 1_000_000 if seconds is None else int(seconds * 1e6)
        record = f"{_KERNEL * 8 + level},{self._sequence},{self._time_us},-;{_escaped(text)}\n"
        record += "".join(f" {key}={_escaped(value)}\n" for key, value in tags.items())
        with self.file.open("a") as log:
            log.write(record)
        self._sequence += 1
        return self

    def xid(self, number: int, detail: str, bus: str = "0000:1b:00", seconds: float | None = None) -> KernelLog:
        """An Xid as the driver prints it: `NVRM: Xid (PCI:0000:1b:00): 79, …`."""
        return self.add(f"NVRM: Xid (PCI:{bus}): {number}, {detail}", level=ERROR, seconds=seconds)

    def sxid(self, number: int, detail: str, bus: str = "0000:05:00.0", seconds: float | None = None) -> KernelLog:
        """An SXid of an NVSwitch: `nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, …`."""
        return self.add(f"nvidia-nvswitch0: SXid (PCI:{bus}): {number}, {detail}", level=ERROR, seconds=seconds)

    def skip(self, count: int) -> KernelLog:
        """The ring buffer overwrote so many records before anybody read them: their sequence numbers are missing."""
        self._sequence += count
        return self

    def tear(self) -> KernelLog:
        """The last record stands there without its end, as when a reader comes in the middle of a write."""
        text = self.file.read_text()
        self.file.write_text(text[: max(0, len(text) - 10)])
        return self

    def reboot(self) -> KernelLog:
        """An empty log that counts from zero again."""
        self.file.write_text("")
        self._sequence = self._time_us = 0
        return self


def _escaped(text: str) -> str:
    return "".join(c if " " <= c <= "~" and c != "\\" else "".join(f"\\x{b:02x}" for b in c.encode()) for c in text)
