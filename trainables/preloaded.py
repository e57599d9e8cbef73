"""Imported by the server of worker processes before it forks them."""

import signal

from trainables.common.errors import lacks_memory

# Ctrl-C reaches this process too, but the program that started it handles it.
before = signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    import torch._dynamo  # noqa: F401 (Otherwise the first optimizer takes seconds.)

    import trainables.process_edge  # noqa: F401
except Exception as error:
    if not lacks_memory(error):
        raise
    # No traceback: the program that started the server reports that memory ran out.
    raise SystemExit(1) from error
finally:
    signal.signal(signal.SIGINT, before)
