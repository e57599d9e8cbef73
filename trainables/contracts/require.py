"""What a check says when something is not kept."""


class UntriedError(Exception):
    """A check finds nothing to try: it is neither kept nor broken."""


def require(kept: bool, otherwise: str) -> None:
    """Raise the error of a check unless something is kept; ``otherwise`` names the finding.

    Raises:
        AssertionError: If it is not.
    """
    if not kept:
        raise AssertionError(otherwise)
