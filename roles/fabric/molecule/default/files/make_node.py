"""Makes, below /srv/fabric, trees of healthy nodes and an archive that looks like Amazon's EFA installer."""

import hashlib
import io
import tarfile
from pathlib import Path

from coderack_lab.gpu.procfs import fake_proc
from coderack_lab.gpu.sysfs import fake_sysfs

ROOT = Path("/srv/fabric")
# What the real one leaves behind as far as the role looks at it; another argument than -y would wait for an answer.
SCRIPT = """\
#!/bin/sh
set -e
[ "$*" = -y ]
mkdir -p /opt/amazon/ofi-nccl/lib
touch /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so
echo "# EFA installer version: $(cat "$(dirname "$0")/VERSION")" >/opt/amazon/efa_installed_packages
"""


def main() -> None:
    for kind in ("infiniband", "efa"):
        fake_sysfs(ROOT / kind / "sys", kind)
        fake_proc(ROOT / kind / "proc", kind)
    with tarfile.open(ROOT / "efa.tar.gz", "w:gz") as archive:
        for name, text, mode in (("efa_installer.sh", SCRIPT, 0o755), ("VERSION", "1.41.0\n", 0o644)):
            entry = tarfile.TarInfo(f"aws-efa-installer/{name}")
            entry.size, entry.mode = len(text), mode
            archive.addfile(entry, io.BytesIO(text.encode()))
    (ROOT / "efa.sha256").write_text(hashlib.sha256((ROOT / "efa.tar.gz").read_bytes()).hexdigest())


main()
