"""The ``calsweep`` command."""

import sys

from trainables.common.errors import lacks_memory, one_line

NO_MEMORY = 5
LONGEST = 298


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    Returns:
        0 for success; 1 if a study has no finished trial, a check fails, a run is not reproduced or
        a result cannot be written; 2 for wrong input; 3 for a negative verdict, such as an alarm or
        a package that is not verified; 4 for a night that could not run; 5 if memory ran out; 130
        when interrupted.
    """
    try:
        # Importing can run out of memory, so it is inside the try block.
        from orchestrator.cli._app import main as run

        return run(arguments)
    except Exception as error:
        if not (reason := lacks_memory(error)):
            raise
        sys.stderr.write(one_line(f"calsweep: {reason}", LONGEST) + "\n")
    return NO_MEMORY


__all__ = ["main"]
