"""Make a wheel whose `vllm` command is the program on standard input, and a model folder for it to serve.

The wheel is the same to the byte wherever it is made, so that a lock file can name its hash.
usage: make_stand_in.py FOLDER < stand_in.py
"""

import sys
import zipfile
from pathlib import Path

INFO = "vllm-0.32.0.dist-info"
FILES = {
    "stand_in.py": sys.stdin.read(),
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": "[console_scripts]\nvllm = stand_in:main\n",
    f"{INFO}/RECORD": "",
}

folder = Path(sys.argv[1])
with zipfile.ZipFile(folder / "vllm-0.32.0-py3-none-any.whl", "w") as wheel:
    for name, text in FILES.items():
        wheel.writestr(zipfile.ZipInfo(name), text)

model = folder / "models/stand-in"
model.mkdir(parents=True)
(model / "config.json").write_text("{}\n")
