"""What the server of worker processes imports before they are forked off it."""

import signal

from trainables.common.errors import lacks_memory

# A Ctrl-C reaches this process too. The program that started it answers, and ends it.
heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    import torch._dynamo  # noqa: F401 (It takes optimizers seconds.)

    import trainables.process_edge  # noqa: F401
except Exception as error:
    if not lacks_memory(error):
        raise
    # The server ends without a traceback; the program that started it says that memory ran out.
    raise SystemExit(1) from error
finally:
    signal.signal(signal.SIGINT, heard)
