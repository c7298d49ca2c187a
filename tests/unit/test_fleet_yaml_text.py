import string
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coderack.fleet import yaml_text

TEXT = st.text() | st.sampled_from(
    [
        "no",
        "on",
        "~",
        "null",
        "1e3",
        "0x1f",
        "012",
        "1_000",
        "12:30",
        "1.5",
        ".inf",
        "2027-01-31",
        "=",
        "<<",
        "a: b",
        "-",
    ]
)
SCALARS = TEXT | st.integers(-(2**63), 2**63) | st.booleans() | st.none()
KEYS = st.text(string.ascii_lowercase + "_-", min_size=1) | st.text(max_size=40)  # YAML ends keys at 1,024 characters
DATA = st.dictionaries(
    KEYS, st.recursive(SCALARS | st.lists(SCALARS), lambda inner: st.dictionaries(KEYS, inner), max_leaves=12)
)


@given(DATA)
@settings(max_examples=60, deadline=None)
def test_both_of_yamls_loaders_read_back_any_data(data: dict[str, Any]) -> None:
    text = yaml_text.dump(data)
    assert yaml.safe_load(text) == data
    assert yaml.load(text, Loader=yaml.CSafeLoader) == data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("p5.48xlarge", "p5.48xlarge"),
        ("NVIDIA H100", "NVIDIA H100"),
        ("no", "'no'"),
        ("12:30", "'12:30'"),
        ("2027-01-31T11:30:00Z", "'2027-01-31T11:30:00Z'"),
        ("a'b", '"a\\U00000027b"'),
        ("a\nb: c", '"a\\U0000000Ab: c"'),
        ("", '""'),
        (8, "8"),
        ([], "[]"),
        ({}, "{}"),
    ],
)
def test_quotes_only_where_yaml_would_read_something_else(value: object, text: str) -> None:
    assert yaml_text.dump({"key": value}) == f"key: {text}\n"


def test_keys_are_sorted_and_lists_indented() -> None:
    assert yaml_text.dump({"b": ["x", 1], "a": {"d": None}}) == "a:\n  d: null\nb:\n  - x\n  - 1\n"
