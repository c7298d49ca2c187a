"""What holds for any input: the writer never writes what the checker refuses, and no text changes the structure."""

import copy
import ipaddress
import json
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coderack.fleet import drift, inventory
from coderack.fleet.contract import Origin, parse_contract
from coderack.spec.checked import SpecError
from coderack.spec.fleet import Fleet

from .data import FLEET, node
from .program import run

IN_TMP_PATH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# --- Fleets that hold together, of every form -----------------------------------------------------------------------

LABEL_END = string.ascii_letters + string.digits
LABELS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 ._:/()+-]{0,20}", fullmatch=True) | st.sampled_from(
    ["no", "Off", "1e3", "012", "0x1f", "12:30", "1_000", "2027-01-31", "null", "i-0abc", "a: b", "a ", "1.5", "yes:"]
)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(
    lambda name: name not in ("all", "localhost", "ungrouped")
) | st.sampled_from(["no", "y", "null", "e1", "true"])
ENDS = st.datetimes().map(
    lambda time: time.strftime("%Y-%m-%dT%H:%M:%SZ") if time.year > 999 else "2027-01-31T00:00:00Z"
)
OPTIONAL = {
    "instance_type": LABELS,
    "image_id": LABELS,
    "placement_group": LABELS,
    "zone": LABELS,
    "reservation": st.fixed_dictionaries({"id": LABELS}, optional={"ends_at": ENDS}),
}


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    numbers = draw(st.lists(st.integers(1, 2**24 - 2), min_size=len(names), max_size=len(names), unique=True))
    kind = draw(st.sampled_from(["efa", "infiniband", "none"]))
    model, count = draw(LABELS), draw(st.integers(1, 16))
    nodes = []
    for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
        private = str(ipaddress.IPv4Address(10 * 2**24 + number))
        extra = draw(st.fixed_dictionaries({}, optional=OPTIONAL))
        if draw(st.booleans()):
            extra["instance_id"] = f"i-{number:017x}"
        ops = place == 0
        devices = [] if ops or kind == "none" else draw(st.lists(LABELS, max_size=4))
        nodes.append(
            {
                "name": name,
                "role": "ops" if ops else "gpu",
                "address": extra.get("instance_id", private),
                "private_address": private,
                "gpus": {"model": "none", "count": 0} if ops else {"model": model, "count": count},
                "fabric": {"kind": "none" if ops else kind, "devices": devices},
                **extra,
            }
        )
    fleet = {"version": 1, "stack": draw(NAMES), "nodes": draw(st.permutations(nodes))}
    return fleet | draw(st.fixed_dictionaries({}, optional={"region": NAMES}))


@given(fleets())
@IN_TMP_PATH
def test_what_was_written_is_read_back_without_a_difference(tmp_path: Path, data: dict[str, Any]) -> None:
    fleet, origin = parse_contract(json.dumps(data), "standard input")
    path = tmp_path / "hosts.yml"
    inventory.write(fleet, path, origin)
    assert drift.against_state(inventory.read(path), fleet) == []


@given(fleets())
@IN_TMP_PATH
def test_ansible_reads_the_same_hosts_groups_and_values(tmp_path: Path, data: dict[str, Any]) -> None:
    fleet, _ = parse_contract(json.dumps(data), "-")
    path = tmp_path / "hosts.yml"
    inventory.write(fleet, path)
    seen = InventoryManager(loader=DataLoader(), sources=[str(path)])
    assert {name: seen.hosts[name].vars for name in seen.hosts} == {
        name: variables | {"inventory_file": str(path), "inventory_dir": str(tmp_path)}
        for name, variables in inventory.listing(fleet)["_meta"]["hostvars"].items()
    }
    for role, group in (("gpu", "gpu_nodes"), ("ops", "ops_nodes")):
        wanted = sorted(entry.name for entry in fleet.nodes if entry.role == role)
        assert sorted(host.name for host in seen.groups[group].hosts) == wanted


@given(fleets(), st.randoms())
@settings(deadline=None)
def test_order_of_the_input_does_not_show(data: dict[str, Any], random: Any) -> None:
    turned = copy.deepcopy(data)
    random.shuffle(turned["nodes"])
    turned = dict(reversed(turned.items()))
    texts = [inventory.render(parse_contract(json.dumps(one), "-")[0]) for one in (data, turned)]
    assert texts[0] == texts[1]


# --- Text that wants to be more than text ---------------------------------------------------------------------------

HOSTILE = (
    "\n    evil:\n      ansible_host: 1.2.3.4",
    "a\n---\nall: {}",
    "a: b",
    "x: {y: z}",
    "- a",
    "a #comment",
    "{{ lookup('pipe', 'id') }}",
    "{% raw %}",
    "!!python/object/apply:os.system [id]",
    "!vault |",
    "&anchor",
    "*alias",
    "<<",
    "'",
    '"',
    "\\",
    "%TAG",
    "@at",
    "`tick",
    "\x00",
    "\x1b[2J",
    "\x85next line",
    "\u2028",
    "\ufeffbom",
    "\U0001f600",
    "~",
    "null",
    "yes",
    "0o17",
    "-.inf",
    "x" * 10_240,
    "a " * 5_120,
    " ",
    "",
)
TEXTS = st.sampled_from(HOSTILE) | st.text() | st.text(string.printable)
Place = Callable[[dict[str, Any], str], object]
PLACES: dict[str, Place] = {
    "stack": lambda fleet, text: fleet.update(stack=text),
    "region": lambda fleet, text: fleet.update(region=text),
    "name": lambda fleet, text: node(fleet, "gpu-b").update(name=text),
    "role": lambda fleet, text: node(fleet, "gpu-b").update(role=text),
    "address": lambda fleet, text: node(fleet, "gpu-b").update(address=text),
    "private address": lambda fleet, text: node(fleet, "gpu-b").update(private_address=text),
    "instance id": lambda fleet, text: node(fleet, "gpu-b").update(instance_id=text),
    "instance type": lambda fleet, text: node(fleet, "gpu-b").update(instance_type=text),
    "image": lambda fleet, text: node(fleet, "gpu-b").update(image_id=text),
    "placement group": lambda fleet, text: node(fleet, "gpu-b").update(placement_group=text),
    "zone": lambda fleet, text: node(fleet, "gpu-b").update(zone=text),
    "GPU model": lambda fleet, text: node(fleet, "gpu-b")["gpus"].update(model=text),
    "fabric kind": lambda fleet, text: node(fleet, "gpu-b")["fabric"].update(kind=text),
    "fabric device": lambda fleet, text: node(fleet, "gpu-b")["fabric"].update(devices=[text]),
    "reservation": lambda fleet, text: node(fleet, "gpu-b")["reservation"].update(id=text),
    "reservation end": lambda fleet, text: node(fleet, "gpu-b")["reservation"].update(ends_at=text),
    "unknown key": lambda fleet, text: node(fleet, "gpu-b").update({text: text}),
}


def shape(tree: object) -> object:
    """A tree without its values; the names of hosts are values too."""
    if isinstance(tree, dict):
        hosts = set(tree) - {"gpu-a", "ops"}
        return {("a host" if "gpu-a" in tree and key in hosts else key): shape(value) for key, value in tree.items()}
    return [shape(item) for item in tree] if isinstance(tree, list) else None


ORDINARY = copy.deepcopy(FLEET) | {"region": "us-west-2"}
node(ORDINARY, "gpu-b").update(image_id="ami-1", placement_group="group")


def ordinary(devices: int) -> object:
    data = copy.deepcopy(ORDINARY)
    node(data, "gpu-b")["fabric"]["devices"] = ["rdmap0"] * devices
    return shape(yaml.safe_load(inventory.render(parse_contract(json.dumps(data), "-")[0])))


ORDINARY_SHAPES = [ordinary(1), ordinary(2)]


@given(st.sampled_from(sorted(PLACES)), TEXTS)
@settings(max_examples=600, deadline=None)
def test_no_text_changes_the_structure(place: str, text: str) -> None:
    data = copy.deepcopy(ORDINARY)
    PLACES[place](data, text)
    try:
        fleet, origin = parse_contract(json.dumps(data), "-")
    except SpecError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert len(refusal) < 2_000
        return
    written = yaml.safe_load(inventory.render(fleet, origin))
    assert shape(written) in ORDINARY_SHAPES
    assert "{{" not in json.dumps(written)
    assert inventory.parse(inventory.render(fleet, origin), "hosts.yml").nodes


@pytest.mark.parametrize("text", HOSTILE)
def test_no_source_name_leaves_the_header(fleet_data: dict[str, Any], text: str) -> None:
    fleet = Fleet.model_validate(fleet_data)
    written = inventory.render(fleet, Origin(text, 1, "3f2a"))
    assert yaml.safe_load(written) == yaml.safe_load(inventory.render(fleet))
    assert len(written.splitlines()) == len(inventory.render(fleet).splitlines()) + 1


@given(TEXTS | st.binary().map(repr))
@settings(deadline=None)
def test_any_input_is_refused_in_words(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_contract(text, "-")
    assert str(caught.value).startswith("fleet output: ")


@pytest.mark.parametrize("text", HOSTILE)
def test_the_command_refuses_hostile_names_and_writes_nothing(
    inventories: Path, fleet_data: dict[str, Any], text: str
) -> None:
    node(fleet_data, "gpu-b").update(name=text)
    code, out, err = run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    # yes and null are text, and good names.
    assert (code, bool(out)) == ((0, True) if text in ("yes", "null") else (2, False))
    assert len(err) < 1_000
    assert (inventories / "lab" / "hosts.yml").exists() is (code == 0)


@given(fleets())
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ansible_inventory_lists_generated_files_and_the_dynamic_form_alike(
    tmp_path: Path, data: dict[str, Any]
) -> None:
    fleet, _ = parse_contract(json.dumps(data), "-")
    inventory.write(fleet, tmp_path / "hosts.yml")
    script = tmp_path / "dynamic"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(inventory.listing(fleet))}\nEND\n")
    script.chmod(0o755)
    static, dynamic = (listed(tmp_path / name) for name in ("hosts.yml", "dynamic"))
    assert static["_meta"]["hostvars"] == dynamic["_meta"]["hostvars"]
    assert {key: sorted(static[key]["hosts"]) for key in ("gpu_nodes", "ops_nodes")} == {
        key: sorted(dynamic[key]["hosts"]) for key in ("gpu_nodes", "ops_nodes")
    }


def listed(source: Path) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(source), "--list"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "WARNING" not in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
