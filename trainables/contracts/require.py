"""What a check says when something is not kept."""


class UntriedError(Exception):
    """A check finds nothing to try: it is neither kept nor broken."""


def require(kept: bool, otherwise: str) -> None:
    """Raise ``AssertionError`` with the finding unless something is kept."""
    if not kept:
        raise AssertionError(otherwise)
