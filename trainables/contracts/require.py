"""Results of checks: ``require`` fails a check, ``UntriedError`` skips it."""


class UntriedError(Exception):
    """The check does not apply, so it neither passes nor fails."""


def require(condition: bool, finding: str) -> None:
    """Raise ``AssertionError`` with the finding unless the condition holds."""
    if not condition:
        raise AssertionError(finding)
