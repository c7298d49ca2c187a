"""Files for node_exporter's textfile collector."""

import socket
from pathlib import Path

import pytest

from coderack.clients.textfile import page, write

TYPES = {"a_total": ("counter", "Of a."), "b": ("gauge", "Of b.")}


def test_a_page_has_each_name_once_with_its_type_and_without_names_that_have_no_series() -> None:
    series = [("b", {}, 1.0), ("b", {"x": "1"}, 0.25)]
    assert page(TYPES, series) == '# HELP b Of b.\n# TYPE b gauge\nb 1\nb{x="1"} 0.25\n'


def test_label_values_are_escaped() -> None:
    assert 'a_total{x="a\\"b\\\\c\\nd"} 1\n' in page(TYPES, [("a_total", {"x": 'a"b\\c\nd'}, 1.0)])


def test_a_file_is_replaced_as_a_whole_and_everybody_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text("old")
    with (tmp_path / "a.prom").open() as reader:
        write(tmp_path / "a.prom", "new")
        assert reader.read() == "old"
    assert (tmp_path / "a.prom").read_text() == "new"
    assert (tmp_path / "a.prom").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["a.prom"]


def test_what_is_no_regular_file_stays(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as occupied:
        occupied.bind(str(tmp_path / "a"))
        with pytest.raises(FileExistsError, match="no regular file"):
            write(tmp_path / "a", "new")
        assert (tmp_path / "a").is_socket()
