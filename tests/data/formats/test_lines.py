import pytest

from maxmatch.data.dataset import DataError
from maxmatch.data.formats.shared import one_line, read_lines


def read(tmp_path, data):
    path = tmp_path / "captions.txt"
    path.write_bytes(data)
    problems = []
    return list(read_lines(path, problems.append)), problems


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_are_numbered_and_lose_their_ends_and_the_byte_order_mark(tmp_path, end, mark, last):
    data = mark + b"ein Hund" + end + end + "größer\x85\u2028".encode() + (end if last else b"")
    assert read(tmp_path, data) == ([(1, "ein Hund"), (2, ""), (3, "größer\x85\u2028")], [])


def test_a_line_that_is_not_utf_8_is_named_and_keeps_its_place(tmp_path):
    lines, problems = read(tmp_path, b"one\ncaf\xe9\nthree\n")
    assert lines == [(1, "one"), (2, None), (3, "three")]
    assert str(problems[0]).startswith(
        f"{tmp_path / 'captions.txt'}:2: not UTF-8: the byte 0xe9 at place 4 of the line"
    )
    assert "iconv" in problems[0].cure


def test_without_a_report_the_first_bad_line_ends_the_reading(tmp_path):
    (tmp_path / "captions.txt").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"captions\.txt:2: not UTF-8"):
        list(read_lines(tmp_path / "captions.txt"))


def test_utf_16_is_reported_once_per_file(tmp_path):
    with pytest.raises(DataError, match=r"the text is UTF-16, expected UTF-8. Save it as UTF-8"):
        read(tmp_path, "one\ntwo\n".encode("utf-16"))


def test_line_breaks_become_spaces():
    assert one_line("  a dog\n runs \r\n\r\nhome. \n") == "a dog runs home."
