import json
from typing import Any

import pytest

from coderack.fleet.contract import parse_fleet
from coderack.spec.checked import SpecError


def test_reads_the_value_of_the_output(fleet_data: dict[str, Any]) -> None:
    assert len(parse_fleet(json.dumps(fleet_data)).nodes) == 3


def test_reads_the_whole_output_object(fleet_data: dict[str, Any]) -> None:
    # The shape of `terraform output -json`.
    outputs = {
        "bastion": {"sensitive": False, "type": "string", "value": "x"},
        "fleet": {"sensitive": False, "type": ["object", {}], "value": fleet_data},
    }
    assert parse_fleet(json.dumps(outputs)) == parse_fleet(json.dumps(fleet_data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n", "the input is empty, wanted JSON; has `terraform apply` run"),
        ("{}", "the input holds nothing, wanted nodes or an output named fleet"),
        ('{"vpc": {"value": 1}}', "the input holds vpc, wanted nodes or an output named fleet"),
        ("[]", "the input is a JSON list, wanted an object"),
        ('{"nodes": [}', "line 1 column 12 is not JSON"),
        ("Warning: No outputs found", "line 1 column 1 is not JSON"),
        ('{"nodes": [], "nodes": []}', "key nodes is given 2 times, wanted once"),
        ("[" * 100_000, "the JSON cannot be read: maximum recursion depth"),
        ('{"version": ' + "1" * 10_000 + "}", "the JSON cannot be read: Exceeds the limit"),
        ('{"fleet": {"sensitive": true, "value": {}}}', "the output is marked sensitive"),
        ('{"fleet": {"value": {"version": 1}}}', "nodes is missing"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_fleet(text)
    assert f"fleet output: {message}" in str(caught.value)
