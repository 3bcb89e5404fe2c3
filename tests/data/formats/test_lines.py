import pytest

from maxmatch.data.dataset import DataError
from maxmatch.data.formats.shared import one_line, read_lines


@pytest.mark.parametrize(("end", "mark"), [(b"\n", b""), (b"\r\n", b"\xef\xbb\xbf")])
def test_lines_are_numbered_and_lose_their_ends_and_the_byte_order_mark(tmp_path, end, mark):
    path = tmp_path / "captions.txt"
    path.write_bytes(mark + b"ein Hund" + end + end + "größer\x85\u2028".encode() + (b"" if mark else end))
    assert list(read_lines(path)) == [(1, "ein Hund"), (2, ""), (3, "größer\x85\u2028")]


def test_a_line_that_is_not_utf_8_is_named_and_keeps_its_place(tmp_path):
    path, problems = tmp_path / "captions.txt", []
    path.write_bytes(b"one\ncaf\xe9\nthree\n")
    assert list(read_lines(path, problems.append)) == [(1, "one"), (2, None), (3, "three")]
    assert str(problems[0]).startswith(f"{path}:2: not UTF-8: the byte 0xe9 at place 4 of the line")
    assert "iconv" in problems[0].cure
    with pytest.raises(DataError, match=r"captions\.txt:2: not UTF-8"):
        list(read_lines(path))
    path.write_bytes("one\ntwo\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"the text is UTF-16, expected UTF-8. Save it as UTF-8"):
        list(read_lines(path, problems.append))


def test_line_breaks_become_spaces():
    assert one_line("  a dog\n runs \r\n\r\nhome. \n") == "a dog runs home."
