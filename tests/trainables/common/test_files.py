import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trainables.common.files import MANIFEST, damage, drafted, scratch_folder, seal, write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_draft_replaces_the_file_at_the_end(tmp_path, durable):
    path = tmp_path / "a.json"
    path.write_text("before")
    with drafted(path, durable) as draft:
        draft.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    write_whole(path, "größer", durable)
    assert path.read_bytes() == "größer".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_at_once_do_not_mix(tmp_path):
    path = tmp_path / "a.json"
    with drafted(path) as one, drafted(path) as other:
        one.write_text("one")
        other.write_text("other")
        assert all(draft.name.startswith(".a.json.") for draft in tmp_path.iterdir())
    assert path.read_text() == "one"  # It was done last.


def test_a_writer_that_raises_changes_and_leaves_nothing(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")

    def write() -> None:
        with drafted(path) as draft:
            draft.write_text("aft")
            raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        write()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [False, True])
def test_durable_files_are_synced_before_they_are_renamed(tmp_path, durable, monkeypatch):
    asked: list[tuple[bool, bool]] = []

    def synced(number: int) -> None:
        asked.append((os.fstat(number).st_ino == tmp_path.stat().st_ino, path.exists()))

    path = tmp_path / "a.json"
    monkeypatch.setattr(os, "fsync", synced)
    write_whole(path, "text", durable)
    assert asked == ([(False, False), (True, True)] if durable else [])


def test_a_scratch_folder_is_renamed_or_removed(tmp_path):
    for name in ("kept", None):
        with scratch_folder(".making-", tmp_path) as scratch:
            assert (scratch.parent, scratch.name[:8]) == (tmp_path, ".making-")
            (scratch / "a").write_text("a")
            if name:
                scratch.rename(tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


def _set(path: Path, name: str, key: str, value: object) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest[name][key] = value
    (path / MANIFEST).write_text(json.dumps(manifest))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda f: (f / "b").unlink(), "b, listed in its manifest.json, is missing"),
    "other size": (lambda f: (f / "a").write_text("12"), "a has 2 bytes, not 3"),
    "other content": (lambda f: (f / "b").write_text("xyz"), "b does not match its checksum"),
    "other checksum": (lambda f: _set(f, "a", "sha256", "0"), "a does not match its checksum"),
    "no checksum": (lambda f: _set(f, "a", "sha256", None), "a does not match its checksum"),
    "no manifest": (
        lambda f: (f / MANIFEST).unlink(),
        "its manifest.json cannot be used: FileNotFoundError",
    ),
    "no JSON": (
        lambda f: (f / MANIFEST).write_text("{"),
        "its manifest.json cannot be used: JSONDecodeError",
    ),
    "a list": (lambda f: (f / MANIFEST).write_text("[]"), "a is not in its manifest.json"),
    "a list of its files": (
        lambda f: (f / MANIFEST).write_text('["a", "b"]'),
        "its manifest.json cannot be used: AttributeError",
    ),
    "empty facts": (
        lambda f: (f / MANIFEST).write_text('{"a": {}, "b": {}}'),
        "its manifest.json cannot be used: KeyError: 'bytes'",
    ),
    "deep JSON": (
        lambda f: (f / MANIFEST).write_text("[" * 100_000),
        "its manifest.json cannot be used: RecursionError",
    ),
    "no facts": (lambda f: (f / MANIFEST).write_text('{"a": 1, "b": 1}'), "TypeError"),
}


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_described(tmp_path, what, alone):
    for name in "ab":
        (tmp_path / name).write_text("123")
    seal(tmp_path)
    assert damage(tmp_path, ("a", "b"), alone) == ""
    assert damage(tmp_path, ("c",), alone) == "c is missing"
    spoil, expected = DAMAGE[what]
    spoil(tmp_path)
    assert expected in damage(tmp_path, ("a",), alone)


def test_an_unlisted_file_is_damage_if_the_files_are_alone(tmp_path):
    (tmp_path / "a").write_text("123")
    seal(tmp_path)
    (tmp_path / "b").write_text("123")
    assert damage(tmp_path, ("a",)) == "b is not in its manifest.json"
    assert damage(tmp_path, ("a",), alone=False) == ""
