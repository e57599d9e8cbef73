"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainables.common.files import drafted, write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_what_was_written_takes_the_place_of_what_was_there(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    with drafted(path, durable) as draft:
        draft.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    write_whole(path, "größer", durable)
    assert path.read_bytes() == "größer".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_raises_changes_and_leaves_nothing(tmp_path: Path) -> None:
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


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "a.json", "text")
    assert not (tmp_path / "none").exists()
