"""What is said of data that are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainables.common.errors import InputError


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> str:
    """Return the one line with which a call refuses what it is given."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **named)
    return str(caught.value)
