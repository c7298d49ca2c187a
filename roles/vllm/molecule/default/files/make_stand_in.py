"""Make a wheel whose `vllm` command is the program on standard input, and a model folder for it to serve."""

import sys
import zipfile
from pathlib import Path

INFO = "vllm-0.32.0.dist-info"

with zipfile.ZipFile("/srv/vllm-0.32.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("stand_in.py", sys.stdin.read())
    wheel.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{INFO}/entry_points.txt", "[console_scripts]\nvllm = stand_in:main\n")
    wheel.writestr(f"{INFO}/RECORD", "")

model = Path("/srv/models/stand-in")
model.mkdir(parents=True)
(model / "config.json").write_text("{}\n")
