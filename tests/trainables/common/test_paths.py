import re
from pathlib import Path

import pytest

from trainables.common.errors import InputError
from trainables.common.paths import (
    DEFAULT_STORAGE,
    local_path,
    require_socket_room,
    storage_folder,
    sweep_command,
    sync_command,
)


def test_paths_are_absolute_and_know_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert local_path("a/b", "x") == tmp_path / "a" / "b"
    assert local_path("~/a", "x") == Path("/home/me/a")
    for text in ("a:b", "c:/d", "./s3://a", "/x/s3:/a", "x" * 255, "./~x", "a\u3000b"):
        assert local_path(text, "x") == (tmp_path / text)


def test_a_path_is_as_long_as_a_system_takes_it_and_no_longer():
    longest = "/" + "/".join(["x" * 255] * 15 + ["x" * 254])
    assert len(longest) == 4095
    assert str(local_path(longest, "x")) == longest
    with pytest.raises(
        InputError, match="too long; use at most 255 bytes per name and 4095 in all"
    ):
        local_path(f"{longest}x", "x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3://bucket/x", "'s3://bucket/x' is a URL; use a path on this machine"),
        ("file:///x", "is a URL"),
        ("hdfs:/x", "is a URL"),
        ("git+ssh://host/x", "is a URL"),
        ("", "is empty"),
        ("~nouser/x", "cannot be a path: Could not determine home directory"),
        ("a\0b", r"'a\x00b' cannot be a path"),
        ("a\nb", r"cannot be a path: it has the control character '\n'"),
        ("~nouser/x", "use the whole path, or ./~NAME for a file ~NAME"),
        ("\ud800", "cannot be a path"),
        ("x" * 256, "it is too long"),
        ("ü" * 128, "it is too long"),
        ("a/" * 2100, "it is too long"),
    ],
)
def test_a_text_that_cannot_be_a_path_is_refused(text, reason):
    with pytest.raises(InputError) as caught:
        local_path(text, "storage")
    assert str(caught.value).startswith("storage: ")
    assert reason in str(caught.value)


def test_a_removed_working_folder_gets_one_line(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match=r"storage: 'a' cannot be a path: .*No such file"):
        local_path("a", "storage")


def test_a_url_that_became_a_path_is_reported_as_a_url():
    with pytest.raises(InputError, match=r"^--out: 's3://b/x' is a URL"):
        local_path(Path("s3://b/x"), "--out")


def test_a_storage_with_another_scheme_is_refused_with_the_allowed_ones():
    with pytest.raises(InputError, match=r"is a URL; .*; or s3://BUCKET/PATH or gs://"):
        storage_folder("hdfs://host/x")


def test_a_folder_leaves_room_for_a_socket_or_is_refused():
    require_socket_room("/" + "a" * 99, "socket", "TMPDIR")
    long = "/" + "a" * 100
    told = f"at most 100 bytes, got 101: {long}; use a shorter one, such as: "
    with pytest.raises(InputError, match=re.escape(told + "export TMPDIR=/tmp")):
        require_socket_room(long, "socket", "TMPDIR")


def test_a_command_names_the_storage_unless_it_is_the_default_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path))
    in_bucket = storage_folder("s3://bucket/of-us") / "sweeps" / "s"
    for folder, place in (
        (tmp_path / DEFAULT_STORAGE / "sweeps" / "s", ""),
        (tmp_path / "my place" / "sweeps" / "s", f" --storage '{tmp_path}/my place'"),
        (in_bucket, " --storage s3://bucket/of-us"),
    ):
        assert sweep_command("run --resume", folder) == f"calsweep run --resume s{place}"
    assert sync_command(in_bucket) == "calsweep storage sync s3://bucket/of-us/sweeps/s"


@pytest.mark.parametrize("sign", [" ", "%", "?", "#", "'", '"', "ü", "\n", "~", "\\"])
def test_a_sign_that_the_address_of_a_bucket_cannot_have_is_named(sign: str) -> None:
    for address in (f"s3://bucket/a{sign}b", f"gs://buc{sign}ket"):
        with pytest.raises(InputError, match=re.escape(f" contains {sign!r}; use s3://BUCKET")):
            storage_folder(address)


@pytest.mark.parametrize("address", ["s3://-bucket/a", "s3://bucket/../a", "s3://bucket//a"])
def test_other_addresses_of_buckets_are_refused(address: str) -> None:
    with pytest.raises(InputError, match="is not the address of a bucket"):
        storage_folder(address)
