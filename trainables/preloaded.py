"""What the server of worker processes imports before they are forked off it."""

from trainables.common.errors import lacks_memory

try:
    import torch._dynamo  # noqa: F401 (It takes optimizers seconds.)

    import trainables.process_edge  # noqa: F401
except Exception as error:
    if not lacks_memory(error):
        raise
    # The server ends without a traceback; the program that started it says that memory ran out.
    raise SystemExit(1) from error
