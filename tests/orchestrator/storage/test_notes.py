import os
import re

import pytest

from orchestrator.storage.notes import ALL, MOST, read_notes, write_note
from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError


@pytest.fixture
def folder(tmp_path):
    found = Storage(tmp_path).sweep("night")
    found.path.mkdir(parents=True)
    return found


def test_a_note_is_kept_until_it_is_emptied(folder):
    assert read_notes(folder) == {}
    write_note(folder, "sweep", " first\nsecond – ü \n")
    write_note(folder, "trial k", "odd")
    assert read_notes(folder) == {"sweep": "first\nsecond – ü", "trial k": "odd"}
    write_note(folder, "sweep", " \n")
    assert read_notes(folder) == {"trial k": "odd"}
    assert sorted(path.name for path in folder.path.iterdir()) == ["notes.json", "notes.lock"]


def test_notes_have_a_size(folder):
    write_note(folder, "sweep", "x" * MOST)
    with pytest.raises(InputError, match="expected at most 10000 characters in a note, got 10001"):
        write_note(folder, "sweep", "y" * (MOST + 1))
    for number in range(ALL // MOST - 1):
        write_note(folder, f"trial {number}", "x" * MOST)
    with pytest.raises(InputError, match="at most 1000000 characters in all notes"):
        write_note(folder, "trial more", "x")
    assert read_notes(folder)["sweep"] == "x" * MOST


@pytest.mark.parametrize("text", ["{", "[]", '{"sweep": 1}', "[" * 100_000])
def test_damaged_notes_are_named_and_kept(folder, text):
    path = folder.path / "notes.json"
    path.write_text(text)
    for use in (lambda: read_notes(folder), lambda: write_note(folder, "sweep", "x")):
        with pytest.raises(
            InputError, match=rf"^{re.escape(str(path))} is damaged: .*; correct it"
        ):
            use()
    assert path.read_text() == text


def test_notes_outside_the_folder_are_not_read(folder, tmp_path):
    path = folder.path / "notes.json"
    (tmp_path / "secret").write_text('{"sweep": "treasure"}')
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads to a place outside"):
        write_note(folder, "sweep", "x")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is not a regular file"):
        read_notes(folder)
