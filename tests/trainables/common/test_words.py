import pytest

from trainables.common.words import duration, many


def test_many_knows_one_and_irregular_plurals() -> None:
    assert [many(count, "trial") for count in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    assert [many(n, "study", "studies") for n in (1, 2)] == ["1 study", "2 studies"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "0.04 s"),
        (0.27, "0.3 s"),
        (1, "1 s"),
        (59.6, "1 min 00 s"),
        (119.4, "1 min 59 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (100 * 3600 + 125, "100 h 02 min"),
    ],
)
def test_durations_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
