"""/etc/coderack/group.json: who is in the group, where, and how patient it is."""

import json
import os
import stat
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from coderack.liveness.group.model import Settings
from coderack.spec.checked import Frozen, SpecError, validate

SCHEMA = "coderack.group-config/1"
SECRET_MIN_BYTES = 32
_MAX_BYTES = 64 * 1024

Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


class MemberAt(Frozen):
    name: Name
    address: str

    @field_validator("address")
    @classmethod
    def _numeric(cls, value: str) -> str:
        try:
            return str(ip_address(value))
        except ValueError:
            raise ValueError(f"address is {value!r}; wanted a numeric one, as in fleet_private_address") from None


class Timing(Frozen):
    """As `Settings`, checked."""

    poll: Seconds = 1.0
    lost_after: Seconds = 20.0
    ready_timeout: Seconds = 2700.0
    restarts: Annotated[int, Field(ge=0, le=100)] = 3
    window: Seconds = 14400.0
    backoff: Seconds = 30.0
    backoff_max: Seconds = 600.0
    kill_after: Seconds = 10.0
    stop_timeout: Seconds = 180.0
    adopt_within: Seconds = 60.0
    probe_max_age: Seconds = 30.0
    probe_down_for: Seconds = 5.0

    @model_validator(mode="after")
    def _fits(self) -> "Timing":
        if self.lost_after < 3 * self.poll:
            raise ValueError(
                f"lost_after is {self.lost_after:g} s and poll {self.poll:g} s; wanted three polls or more"
            )
        longest = self.restarts * (self.ready_timeout + self.stop_timeout + self.backoff_max)
        if self.window <= longest:
            raise ValueError(
                f"timing.window is {self.window:g} s, but {self.restarts} starts that never become ready take up to "
                f"{longest:g} s, so that the budget would never be used up; wanted a longer window"
            )
        return self


class GroupConfig(Frozen):
    schema_: Annotated[Literal["coderack.group-config/1"], Field(alias="schema")]
    group: Name
    member: Name
    members: Annotated[tuple[MemberAt, ...], Field(min_length=2, max_length=64)]
    port: Annotated[int, Field(ge=1, le=65535)]
    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}\.service$")] = "vllm.service"
    secret_file: Path = Path("/etc/coderack/group.secret")
    state_dir: Path = Path("/var/lib/coderack/group")
    probe_file: Path = Path("/run/coderack/probe.json")
    textfile: Path | None = None
    systemctl: str = "systemctl"
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    timing: Timing = Timing()

    @model_validator(mode="after")
    def _holds_together(self) -> "GroupConfig":
        for field in ("name", "address"):
            values = [getattr(member, field) for member in self.members]
            if len(set(values)) < len(values):
                raise ValueError(f"members have the same {field} twice: {', '.join(values)}")
        if self.member not in self.names:
            raise ValueError(f"member is {self.member!r}; wanted one of {', '.join(self.names)}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All members; the first is the head."""
        return tuple(member.name for member in self.members)

    @property
    def head(self) -> MemberAt:
        return self.members[0]

    @property
    def is_head(self) -> bool:
        return self.member == self.head.name

    @property
    def settings(self) -> Settings:
        return Settings(**self.timing.model_dump())


def load(path: Path) -> GroupConfig:
    """Raises SpecError, which says what is wrong with the file."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_MAX_BYTES + 1)[: _MAX_BYTES + 1])
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; role vllm_group writes it on the nodes of a fused group"
        raise SpecError(str(path), (problem,)) from None
    except (ValueError, RecursionError) as error:
        raise SpecError(str(path), (f"is no JSON: {error}",)) from None
    return validate(GroupConfig, data, str(path))


def secret(path: Path) -> bytes:
    """The shared secret. Raises SpecError where it is missing, short, or open to others."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno()).st_mode
            text = file.read(4096).strip()
    except OSError as error:
        raise SpecError(str(path), (f"cannot be read: {error.strerror}; it is for root alone",)) from None
    if not stat.S_ISREG(status) or stat.S_IMODE(status) & 0o077:
        problem = f"has mode {stat.S_IMODE(status):04o}; wanted 0600, since whoever reads it can stop the group"
        raise SpecError(str(path), (problem,))
    if len(text) < SECRET_MIN_BYTES:
        raise SpecError(str(path), (f"holds {len(text)} bytes, wanted at least {SECRET_MIN_BYTES}",))
    return text
