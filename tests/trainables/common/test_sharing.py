import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainables.common.errors import StorageError
from trainables.common.files import follow_folder, inherit, permitted, why

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # Where Python looks first.
NAMELESS = """
import os, pwd
def unknown(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")
pwd.getpwuid = unknown
import torch, trainables
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
assert os.environ["USER"] == str(os.getuid())
"""


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("mode", "made"),
    [
        (0o2775, 0o664),
        (0o2770, 0o660),
        (0o775, 0o640),  # Its group is not passed on.
        (0o2755, 0o640),  # Its group may not write.
    ],
)
def test_a_shared_folder_takes_the_place_of_the_umask(tmp_path, mode, made):
    tmp_path.chmod(mode)
    follow_folder(tmp_path)
    (tmp_path / "new").touch()
    assert (tmp_path / "new").stat().st_mode & 0o777 == made


def test_a_missing_folder_does_not_change_the_umask(tmp_path):
    follow_folder(tmp_path / "absent")
    assert os.umask(0o027) == 0o027


def test_private_files_inherit_the_rights_of_the_folder(tmp_path):
    tmp_path.chmod(0o2777)
    (tmp_path / "file").touch(0o600)
    (tmp_path / "folder").mkdir(0o700)
    for name, mode in (("file", 0o664), ("folder", 0o2775)):
        inherit(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o7777 == mode


def test_errors_without_missing_rights_keep_their_text(tmp_path):
    assert why(OSError(errno.ENOSPC, "No space left", str(tmp_path))) == "No space left"
    assert why(OSError("of no system call")) == "of no system call"
    assert why(PermissionError(errno.EPERM, "Not permitted")) == "Not permitted"


def test_missing_rights_are_reported_with_the_owner(tmp_path, monkeypatch):
    shut = tmp_path / "shut"
    shut.mkdir()
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != shut)  # Root may all.
    with pytest.raises(StorageError) as raised, permitted():
        raise PermissionError(errno.EACCES, "Permission denied", str(shut / "absent"))
    said = str(raised.value)
    assert f"Permission denied: {shut} belongs to {shut.owner()}, drwxr-x---; " in said
    assert "its owner can share it" in said
    with pytest.raises(FileNotFoundError), permitted():
        raise FileNotFoundError


@pytest.mark.full
def test_an_optimizer_can_be_built_by_a_user_without_a_name():
    """In a subprocess: what torch looks up as it is imported is looked up once."""
    nameless = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS], env=nameless, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
