"""What `nvmlDeviceGetFieldValues` knows on driver 580, by field id: value type and where the value comes from.

Captured on one H200 (project facts, h200-one-gpu), item by item; ids that are missing here answered INVALID_ARGUMENT
there. Names of the ids are nvidia-ml-py's `NVML_FI_DEV_*`.
"""

from __future__ import annotations

from collections.abc import Iterator

DOUBLE, UINT, ULONGLONG, INT = 0, 1, 3, 5

# Reference to another reading of the same GPU, so that one fault shows in the call and in the field.
_REFERENCES: dict[int, tuple[int, str]] = {
    1: (ULONGLONG, "ecc.mode"),
    2: (ULONGLONG, "ecc.pending"),
    3: (ULONGLONG, "ecc.total.corrected.volatile"),
    4: (ULONGLONG, "ecc.total.uncorrected.volatile"),
    5: (ULONGLONG, "ecc.total.corrected.aggregate"),
    6: (ULONGLONG, "ecc.total.uncorrected.aggregate"),
    82: (UINT, "temperature.memory"),
    83: (ULONGLONG, "energy"),
    94: (UINT, "pcie.replay"),
    95: (UINT, "pcie.replay_rollover"),
    142: (ULONGLONG, "remapped.corrected"),
    143: (ULONGLONG, "remapped.uncorrected"),
    144: (ULONGLONG, "remapped.pending"),
    145: (ULONGLONG, "remapped.failure"),
    146: (UINT, "link.#.remote.link"),
    161: (ULONGLONG, "link.#.replay"),
    162: (ULONGLONG, "link.#.recovery"),
    163: (ULONGLONG, "link.#.crc"),
    164: (UINT, "link.#.speed_mbps"),
    165: (UINT, "link.#.state"),
    166: (UINT, "link.#.version"),
    167: (UINT, "link.#.power_state"),
    169: (UINT, "pcie.l0_to_recovery"),
    173: (UINT, "pcie.correctable"),
    174: (UINT, "pcie.naks_received"),
    175: (UINT, "pcie.receiver_error"),
    176: (UINT, "pcie.bad_tlp"),
    177: (UINT, "pcie.naks_sent"),
    178: (UINT, "pcie.bad_dllp"),
    179: (UINT, "pcie.non_fatal"),
    180: (UINT, "pcie.fatal"),
    181: (UINT, "pcie.unsupported_request"),
    182: (UINT, "pcie.lcrc_error"),
    183: (UINT, "pcie.lane_error"),
    185: (UINT, "power.average"),
    186: (UINT, "power.instant"),
    191: (ULONGLONG, "energy"),
    193: (INT, "tlimit.shutdown"),
    194: (INT, "tlimit.slowdown"),
    195: (INT, "tlimit.memory_max"),
    196: (INT, "tlimit.gpu_max"),
    197: (UINT, "pcie.tx_bytes"),
    198: (UINT, "pcie.rx_bytes"),
    230: (UINT, "recovery_action"),
    269: (ULONGLONG, "clocks.time.sw_thermal"),
    301: (ULONGLONG, "remapped.corrected_inactive"),
    302: (ULONGLONG, "remapped.uncorrected_inactive"),
}

# Plain values, as captured.
_VALUES: dict[int, tuple[int, int]] = {
    **{74 + i: (ULONGLONG, 0) for i in range(8)},  # time in each performance policy, ns
    78: (ULONGLONG, 16278100256),
    80: (ULONGLONG, 7016638528),
    81: (ULONGLONG, 7016638528),
    184: (UINT, 1),
    199: (UINT, 1),
    **dict.fromkeys((226, 227, 228, 229), (UINT, 0)),
    # Success with nothing in it: type 0 and zero bits, while nvidia-smi printed 200 and 700 W. Not a reading.
    **dict.fromkeys((147, 187, 188, 189, 190, 192, 270, 271, 272), (DOUBLE, 0)),
}

# Known to the driver and not served: the item keeps its type and answers NOT_SUPPORTED.
_UNSUPPORTED: tuple[tuple[int, range], ...] = (
    (ULONGLONG, range(7, 32)),  # ECC by location, retired pages
    (DOUBLE, range(32, 74)),  # NVLink counters of the first generations, by lane
    (DOUBLE, range(84, 91)),
    (UINT, range(91, 92)),
    (ULONGLONG, range(92, 94)),
    (DOUBLE, range(96, 138)),
    (ULONGLONG, range(138, 142)),
    (DOUBLE, range(148, 161)),
    (UINT, range(168, 169)),
    (UINT, range(170, 173)),  # C2C
    (UINT, range(200, 201)),
    (DOUBLE, range(201, 223)),  # NVLink 5
    (UINT, range(223, 226)),
    (UINT, range(231, 235)),  # C2C
    (DOUBLE, range(235, 251)),  # NVLink 5, FEC history
    (ULONGLONG, range(273, 274)),
    (DOUBLE, range(294, 296)),
)


def field_keys() -> Iterator[tuple[str, str]]:
    """Key and value of every field and of its type, for all GPUs alike."""
    known: dict[int, tuple[int, str]] = {}
    for kind, ids in _UNSUPPORTED:
        known.update(dict.fromkeys(ids, (kind, "error NOT_SUPPORTED")))
    known.update({i: (kind, str(value)) for i, (kind, value) in _VALUES.items()})
    known.update({i: (kind, f"@{target}") for i, (kind, target) in _REFERENCES.items()})
    for i, (kind, value) in sorted(known.items()):
        yield f"gpu.*.field.{i}", value
        yield f"gpu.*.field.{i}.type", str(kind)
