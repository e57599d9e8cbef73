import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = str(Path(__file__).parents[2] / "trainables" / "preloaded.py")


class Interrupting:
    """Sends this process a Ctrl-C whenever a module is looked for."""

    asked = 0

    def find_spec(self, name: str, *_: object) -> None:
        self.asked += name == "trainables.process_edge"
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_does_not_break_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = Interrupting()
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    monkeypatch.delitem(sys.modules, "trainables.process_edge", raising=False)
    before = signal.getsignal(signal.SIGINT)

    code = compile(Path(SOURCE).read_text(), SOURCE, "exec")
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    exec(code, {})

    assert finder.asked == 1
    assert signal.getsignal(signal.SIGINT) is before
