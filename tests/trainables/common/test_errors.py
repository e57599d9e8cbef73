import pickle
import re
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.common.errors import (
    InputError,
    StorageError,
    lacks_memory,
    one_line,
    printable,
    require_addresses,
)


@given(text=st.text() | st.text(st.characters(codec=None)))
def test_any_message_is_one_printable_line(text):
    assert str(InputError(text)).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain: ü, 漢, ≈, 'a  b'", "plain: ü, 漢, ≈, 'a  b'"),
        ("two\nlines", "two lines"),
        ("\x1b[31m\x07\r\t\x7f\x9b", r"\x1b[31m\x07\r\t\x7f\x9b"),
        ("a\u202eb\u2028c\u2066", r"a\u202eb\u2028c\u2066"),
        ("\ud800\udcff", r"\ud800\udcff"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_invisible_characters_are_escaped(text, shown):
    assert str(StorageError(text)) == shown
    assert printable(text).replace("\n", " ") == shown


def test_a_long_message_keeps_its_beginning_and_its_end():
    text = f"storage: {'x' * 9000}: is too long"
    for line in (one_line(text, 100), str(InputError(text))):
        assert line.startswith("storage: xxx")
        assert line.endswith("xxx: is too long")
        assert " ... " in line
        assert len(line) <= 100


@pytest.mark.parametrize("start", ["/", "", "~/", "../", "s3:/"])
def test_a_long_path_in_a_long_message_stays_whole(start):
    path = f"{start}{'a' * 60}/{'b' * 60}/{'c' * 60}/camvid.yaml"
    text = f"layout '{path}': rows: 'ce' is there twice; {'name each row once ' * 6}"
    assert len(text) > 320
    assert str(InputError(text)) == text


def test_any_exception_caused_by_lack_of_memory_is_recognised():
    try:
        try:
            raise OSError("libtorch.so: failed to map segment from shared object")
        except OSError as error:
            raise ImportError("torch is not there") from error
    except ImportError as error:
        told = lacks_memory(error)
    assert told.startswith("out of memory or threads (OSError: libtorch.so: failed to map segment")
    assert lacks_memory(MemoryError()).startswith("out of memory or threads (MemoryError: no more")
    assert lacks_memory(RuntimeError("can't start new thread"))
    assert lacks_memory(ValueError("3 rows")) == ""


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 4 << 30])
def test_a_sweep_starts_if_the_address_space_suffices_for_its_libraries(monkeypatch, limit):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    require_addresses()


def test_a_sweep_is_refused_where_its_libraries_find_no_room(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (3_450_000 << 10, -1))
    with pytest.raises(MemoryError) as refused:
        require_addresses()
    assert lacks_memory(refused.value) == (
        "out of memory or threads (MemoryError: the libraries of a sweep need 4096 MiB of "
        "address space); this process is limited to 3369 MiB; raise the limit with `ulimit -v`"
    )


def test_a_list_in_a_long_message_is_cut_first():
    names = [f"name{number}" for number in range(1000)]
    line = str(InputError(f"recipe 'a' is unknown; there are: {', '.join(names)}; give one"))
    assert line.startswith("recipe 'a' is unknown; there are: name0, name1, name2")
    assert re.search(r"name\d+, \.\.\. \(\d+ more\)", line)
    few = f"{'y ' * 90}: {', '.join(names[:20])}; give one"
    shown = one_line(few, 300)
    assert shown.endswith(f": {', '.join(names[:12])}, ... (8 more); give one")
    told = one_line(f"{shown} or {'z ' * 10}", 300)
    assert f"{', '.join(names[:8])}, ... (12 more); give one" in told


def test_a_message_is_cut_in_the_middle_and_no_shorter_than_need_be():
    assert one_line("x" * 100, 100) == "x" * 100
    text = "x " * 30 + "y " * 20 + "y"
    assert one_line(text, 100) == f"{text[:48]} ... {text[-47:]}"


def test_a_message_travels_whole_between_processes():
    error = pickle.loads(pickle.dumps(InputError("a\x1bb")))
    assert error.args == ("a\x1bb",)
    assert str(error) == r"a\x1bb"
