"""Errors as one line that says what, where and what was wanted; files written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ladder_opt.errors import InputError, InternalError, LadderOptError, SolveError, UsageError
from ladder_opt.files import open_to_read, read_bytes, read_text, replace_when_whole, sha256_of, write_text
from ladder_opt.validation import as_input_error, check_schema, load_json_object, shown


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "found x, expected y"),
        ({"path": "f.csv"}, "f.csv: found x, expected y"),
        ({"path": Path("d/f.csv"), "line": 7}, "d/f.csv:7: found x, expected y"),
        ({"path": "f.csv", "line": 7, "column": "steps"}, "f.csv:7: steps: found x, expected y"),
        ({"path": "f.json", "column": "engine.block_size"}, "f.json: engine.block_size: found x, expected y"),
        ({"line": 7}, "line 7: found x, expected y"),
        ({"line": 7, "column": 2}, "line 7: 2: found x, expected y"),
        ({"column": "steps"}, "steps: found x, expected y"),
    ],
)
def test_an_input_error_says_what_and_where(place: dict[str, object], text: str) -> None:
    error = InputError("x", "y", **place)  # type: ignore[arg-type]
    assert str(error) == text
    assert (error.found, error.expected) == ("x", "y")
    assert error.path == (None if "path" not in place else str(place["path"]))
    assert (error.line, error.column) == (place.get("line"), place.get("column"))


@given(st.text(), st.text(), st.text(min_size=1))
def test_an_input_error_is_one_line_whatever_it_quotes(found: str, expected: str, path: str) -> None:
    assert len(str(InputError(found, expected, path=path)).splitlines()) <= 1


def test_a_users_mistake_and_our_bug_are_different_types() -> None:
    for mistake in (InputError, UsageError, SolveError):
        assert issubclass(mistake, LadderOptError)
        assert issubclass(mistake, ValueError)
    assert issubclass(InternalError, LadderOptError)
    assert issubclass(InternalError, RuntimeError)
    assert not issubclass(InternalError, ValueError)


# Reading.


def message_of_reading(path: Path | str, *, max_bytes: int = 100) -> str:
    with pytest.raises(InputError) as error:
        read_text(path, max_bytes=max_bytes, what="a plan")
    return str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert message_of_reading(gone) == f"{gone}: found No such file or directory, expected a readable file"
    assert message_of_reading(tmp_path) == f"{tmp_path}: found Is a directory, expected a readable file"
    under = tmp_path / "file"
    under.write_text("x")
    inside = under / "below"
    assert message_of_reading(inside) == f"{inside}: found Not a directory, expected a readable file"
    assert message_of_reading("a\0b") == "'a\\x00b': found embedded null byte, expected a readable file"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert message_of_reading(loop) == (
        f"{loop}: found Too many levels of symbolic links, expected a readable file"
    )


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    assert read_text(path, max_bytes=100, what="a plan") == "x" * 100
    path.write_bytes(b"x" * 101)
    assert message_of_reading(path) == f"{path}: found more than 100 bytes, expected a plan of at most that"
    assert message_of_reading("/dev/zero", max_bytes=5) == (
        "/dev/zero: found more than 5 bytes, expected a plan of at most that"
    )


def test_text_is_utf8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbf\xc3\xa9")
    assert read_text(path, max_bytes=100, what="a plan") == "\u00e9"
    path.write_bytes(b"ab\xff")
    assert message_of_reading(path) == f"{path}: found byte 0xff at 2, expected a plan in UTF-8"


def test_digests_are_those_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    data = os.urandom((1 << 20) + 7)
    path.write_bytes(data)
    assert sha256_of(path) == hashlib.sha256(data).hexdigest()
    with open_to_read(path) as stream:
        assert stream.read() == data
    assert read_bytes(path, max_bytes=len(data), what="a file") == data


# Writing.


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "a\nb\n")
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"a\nb\n"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert names(tmp_path) == ["new"]


def test_a_file_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("old")
    path.chmod(0o600)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt(), InputError("x", "y")])
def test_the_old_file_stays_when_the_block_raises(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def write_half() -> None:
        with replace_when_whole(path) as part:
            part.write_text("half of the n")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["plan.json"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_the_old_file_stays_when_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(number)) as error:
        write_text(path, "new")
    assert error.value.filename == str(path)  # not the temporary file's
    assert path.read_text() == "old"
    assert names(tmp_path) == ["plan.json"]


def test_a_reader_sees_the_old_content_until_the_new_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    with replace_when_whole(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
        assert part.parent == path.parent  # a rename across file systems would be a copy
    assert path.read_text() == "new"


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "real" / "plan.json"
    target.parent.mkdir()
    target.write_text("old")
    link = tmp_path / "plan.json"
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(target.parent) == ["plan.json"]
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "made")
    write_text(dangling, "made")
    assert (tmp_path / "made").read_text() == "made"


def test_a_device_is_written_to_and_not_replaced() -> None:
    before = Path("/dev/null").stat()
    write_text("/dev/null", "gone")
    after = Path("/dev/null").stat()
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_rdev) == (before.st_ino, before.st_rdev)


def test_a_pipe_gets_the_whole_content(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "whole\n")
    reader.join(timeout=10)
    assert got == ["whole\n"]
    assert names(tmp_path) == ["pipe"]


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "plan.json"
    with pytest.raises(InputError) as error:
        write_text(gone, "x")
    assert (
        str(error.value)
        == f"{gone.parent}: found No such file or directory, expected a folder that can be written"
    )
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as error:
        write_text(tmp_path / "folder", "x")
    assert str(error.value) == (
        f"{tmp_path / 'folder'}: found Is a directory, expected a path that can be written"
    )
    assert names(tmp_path) == ["folder"]


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_text(path, "x")
    assert path.read_text() == "x"


def test_file_names_that_are_no_text_are_written_as_the_bytes_they_are(tmp_path: Path) -> None:
    name = b"plan-\xff\xc3\xa9.json"
    write_text(tmp_path / "f", os.fsdecode(name))
    assert (tmp_path / "f").read_bytes() == name


# JSON.


def message_of_json(text: str) -> str:
    with pytest.raises(InputError) as error:
        load_json_object(text, path="f.json", what="a plan")
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.json:1: column 1: found the end of the file (Expecting value), expected a plan in JSON"),
        (
            '{"a": 1,\n "b": ',
            "f.json:2: column 7: found the end of the file (Expecting value), expected a plan in JSON",
        ),
        ("{a: 1}", None),
        ("[1, 2]", "f.json: found [1, 2], expected a plan: a JSON object"),
        ("null", "f.json: found None, expected a plan: a JSON object"),
        ('{"a": NaN}', "f.json: found NaN, expected finite numbers"),
        ('{"a": -Infinity}', "f.json: found -Infinity, expected finite numbers"),
        ('{"a": {"b": 1, "b": 2}}', "f.json: found key 'b' twice, expected each key once"),
        ("[" * 100_000, "f.json: found brackets nested too deeply, expected a plan in JSON"),
    ],
)
def test_json_that_is_no_object(text: str, message: str | None) -> None:
    found = message_of_json(text)
    if message is None:
        assert found.startswith("f.json:1: column 2: found 'a: 1}' (Expecting property name")
    else:
        assert found == message


def test_json_integers_of_any_length_end_in_one_line() -> None:
    assert message_of_json('{"a": ' + "9" * 5000 + "}").startswith("f.json: found Exceeds the limit")


def test_many_keys_are_checked_in_no_time() -> None:
    pairs = ", ".join(f'"k{index}": 0' for index in range(20_000))
    assert message_of_json("{" + pairs + ', "k19999": 1}') == (
        "f.json: found key 'k19999' twice, expected each key once"
    )


def test_schemas_of_one_major_version_pass() -> None:
    for name in ("family/1", "family/1.5"):
        check_schema({"schema": name}, family="family", major=1, path=None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "f.json: schema: found schema None, expected 'family/1'"),
        ({"schema": 1}, "f.json: schema: found schema 1, expected 'family/1'"),
        ({"schema": "family/2"}, "f.json: schema: found 'family/2', expected 'family/1'"),
        ({"schema": "family/10"}, "f.json: schema: found 'family/10', expected 'family/1'"),
        ({"schema": "other/1"}, "f.json: schema: found 'other/1', expected 'family/1'"),
    ],
)
def test_other_schemas_are_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        check_schema(data, family="family", major=1, path="f.json")
    assert str(error.value) == message


class _Inner(BaseModel):
    sizes: list[int]


class _Outer(BaseModel, extra="forbid"):
    inner: _Inner


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "f.json: inner: found nothing, expected a value"),
        (
            {"inner": {"sizes": []}, "x": 1},
            "f.json: x: found an unknown key, expected only the keys of this format",
        ),
        (
            {"inner": {"sizes": [1, "a"]}},
            "f.json: inner.sizes[1]: found 'a', expected integer, unable to parse string as an integer",
        ),
        ([], "f.json: found [], expected dictionary or instance of _Outer"),
    ],
)
def test_a_validation_error_names_the_key(data: object, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        _Outer.model_validate(data)
    assert str(as_input_error(error.value, path="f.json")) == message


def test_shown_values_are_short() -> None:
    assert shown("x") == "'x'"
    assert shown("x" * 100) == "'" + "x" * 59 + "..."
