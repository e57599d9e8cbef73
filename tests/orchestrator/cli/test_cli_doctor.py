import json
import os
import platform
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cli import _doctor
from orchestrator.storage.storage import Storage
from orchestrator.sweep.tracking_uri import check_tracking_uri
from trainables.common.errors import InputError
from trainables.data import source_names
from trainables.stages import probe

LINE = re.compile(r"(ok  |info|FAIL) ([^:]+): (.+)")


def findings(out):
    found = [LINE.fullmatch(line).groups() for line in out.splitlines()]
    return {subject: (mark.strip(), text) for mark, subject, text in found}


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setattr(_doctor, "_ray", lambda: _doctor.Finding("Ray", "not asked"))


@pytest.mark.slow
def test_a_machine_that_is_ready(calsweep, empty_folder):
    code, out, _ = calsweep("doctor")
    found = findings(out)
    assert code == 0
    assert list(found) == ["versions", "GPUs", "Ray", "token", "tracking", "storage", "data sets"]
    for subject in ("versions", "Ray", "tracking", "storage"):
        assert found[subject][0] == "ok"
    assert re.search(r"with [1-9]\d* CPUs", found["Ray"][1])
    assert all(" -> " in text for mark, text in found.values() if mark != "ok")
    assert list(empty_folder.iterdir()) == []


def test_every_line_of_a_machine_that_is_ready(calsweep, no_ray, monkeypatch, empty_folder):
    facts = SimpleNamespace(f_bavail=7 * 2**18, f_frsize=2**12)
    monkeypatch.setattr(_doctor.os, "statvfs", lambda folder: facts)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("orchestrator.cluster.local.token_fault", lambda: "")
    monkeypatch.setattr(
        "orchestrator.storage.provenance.library_versions", lambda: {"torch": "2", "ray": "3"}
    )
    asked, track = [], "orchestrator.tracking"
    monkeypatch.setattr(f"{track}.check_login", lambda *words: asked.append(words))
    monkeypatch.setattr(f"{track}.ping", lambda *words: asked.append(words) or (True, "there"))
    code, out, err = calsweep("doctor", "--storage", "kept")
    uri = f"sqlite:///{empty_folder}/kept/mlflow.db"
    assert (code, err, asked) == (0, "", [(uri, 10.0)] * 2)
    absent = (name for name in source_names() if ":" not in name and "digits" not in name)
    assert out.splitlines() == [
        f"ok   versions: Python {platform.python_version()}, torch 2, ray 3",
        "info GPUs: none: trials run on the CPU -> install a driver that fits this torch build if "
        "this machine has an NVIDIA GPU",
        "ok   Ray: not asked",
        "ok   token: no token that others could read",
        "ok   tracking: there",
        f"ok   storage: {empty_folder}/kept is writable, 7 GB free",
        "ok   data sets: digits, digits-noisy",
        f"info data sets: not stored: {', '.join(absent)} -> most are downloaded on first "
        "use; calsweep doctor --json says how to get each",
    ]


def test_doctor_prints_a_remedy_with_each_failure(calsweep, no_ray, empty_folder):
    (empty_folder / "file").write_text("")
    code, out, _ = calsweep("doctor", "--storage", "file/deep", "--tracking-uri", "./mlruns")
    found = findings(out)
    assert code == 1
    why = f"{empty_folder}/file/deep is not writable: Not a directory"
    assert found["storage"] == ("FAIL", f"{why} -> give another --storage")
    with pytest.raises(InputError) as refused:
        check_tracking_uri("./mlruns")
    assert found["tracking"] == ("FAIL", f"{refused.value} -> give another --tracking-uri")


def test_every_gpu_is_named_and_tried(calsweep, no_ray, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: f"card {index}")
    faults = {"cuda:0": "", "cuda:1": "it is bad", "cuda:2": ""}
    monkeypatch.setattr(_doctor, "_step", faults.__getitem__)
    code, out, _ = calsweep("doctor")
    found = findings(out)
    assert (code, found["GPUs"]) == (1, ("ok", "card 0, card 1, card 2"))
    assert found["GPU 0"] == found["GPU 2"] == ("ok", "does a training step")
    assert found["GPU 1"][0] == "FAIL"
    assert found["GPU 1"][1].startswith("it is bad -> hide it")


@pytest.mark.full
def test_a_gpu_that_does_no_training_step(calsweep, no_ray, monkeypatch):
    """Torch sees it here; the process that is to use it does not."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "a card")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, _ = calsweep("doctor")
    found = findings(out)
    assert (code, found["GPUs"][0], found["GPU 0"][0]) == (1, "ok", "FAIL")
    assert re.search(r"(CUDA|NVIDIA).* -> hide it with CUDA_VISIBLE_DEVICES", found["GPU 0"][1])


def test_doctor_checks_the_usual_folder_of_mps_if_no_folder_is_set(monkeypatch, tmp_path):
    usual, real = Path("/tmp/nvidia-mps/control"), Path.exists
    (tmp_path / "control").touch()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(Path, "exists", lambda path: path == usual or real(path))
    places = {None: "ok", "": "ok", "/nowhere": "info", str(tmp_path): "ok"}
    for named, mark in places.items():
        monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
        if named is not None:
            monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", named)
        (found,) = _doctor._mps()
        assert (found.mark, found.detail[:4]) == (mark, "on: " if mark == "ok" else "off:")


def test_a_device_that_does_a_training_step_tells_its_loss(monkeypatch, capsys):
    for name in ("ROWS", "SIDE"):  # A CPU takes long over so many pixels in bfloat16.
        monkeypatch.setattr(probe, name, 8)
    monkeypatch.setattr("sys.argv", ["probe", "cpu"])
    probe.main()
    assert 1.0 < float(capsys.readouterr().out) < 5.0


def test_doctor_reports_a_device_that_never_answers(monkeypatch):
    monkeypatch.setattr(_doctor, "STEP_SECONDS", 0.01)
    assert _doctor._step("cpu") == "did no training step within 0.01 seconds"


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ("exit 0;", ""),
        ("echo first >&2; echo last >&2;", "last"),
        ("", "the process ended with code 3"),
    ],
)
def test_a_device_is_blamed_with_the_last_words_of_the_step(monkeypatch, tmp_path, told, fault):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{told} exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(_doctor.sys, "executable", str(program))
    assert _doctor._step("cuda:0") == fault


def test_a_token_that_others_may_read_is_no_fault_and_has_its_remedy(calsweep, no_ray, monkeypatch):
    fault = "other users can read the token in t: chmod 600 t"
    monkeypatch.setattr("orchestrator.cluster.local.token_fault", lambda: fault)
    code, out, _ = calsweep("doctor")
    assert (code, findings(out)["token"]) == (0, ("info", fault.replace(": ", " -> ")))


def test_a_library_that_is_missing_is_to_be_installed(calsweep, no_ray, monkeypatch):
    versions = {"torch": "2.11", "ray": "not installed", "mlflow": "not installed"}
    monkeypatch.setattr("orchestrator.storage.provenance.library_versions", lambda: versions)
    code, out, _ = calsweep("doctor")
    mark, text = findings(out)["versions"]
    assert (code, mark) == (1, "FAIL")
    assert "torch 2.11, ray not installed" in text
    assert text.endswith(" -> pip install ray mlflow")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("no login; ask Ada", "no login -> ask Ada"), ("no", "no -> ask whoever runs the server")],
)
def test_a_login_that_is_refused(calsweep, no_ray, monkeypatch, fault, expected):
    def refuse(uri, timeout):
        raise InputError(fault)

    monkeypatch.setattr("orchestrator.tracking.check_login", refuse)
    code, out, _ = calsweep("doctor")
    assert (code, findings(out)["tracking"]) == (1, ("FAIL", expected))


def test_doctor_checks_a_missing_storage_folder_without_creating_it(calsweep, no_ray, empty_folder):
    code, out, _ = calsweep("doctor", "--storage", "deep/er")
    assert findings(out)["storage"][1].startswith(f"{empty_folder / 'deep' / 'er'} is writable, ")
    assert (code, list(empty_folder.iterdir())) == (0, [])


def test_a_server_that_is_away(calsweep, no_ray):
    code, out, _ = calsweep("doctor", "--tracking-uri", "http://127.0.0.1:9")
    mark, text = findings(out)["tracking"]
    assert (code, mark) == (1, "FAIL")
    assert text.endswith(" -> start the server, or give another --tracking-uri")


def test_ray_that_does_not_start(calsweep, monkeypatch):
    def refuse(**options):
        raise RuntimeError("no shared memory\nmore")

    monkeypatch.setattr("ray.init", refuse)
    code, out, _ = calsweep("doctor")
    mark, text = findings(out)["Ray"]
    assert (code, mark) == (1, "FAIL")
    told = "Ray does not start on this machine: no shared memory more"
    assert text == f"{told} -> free memory and /dev/shm, then try again"


def test_doctor_accepts_a_missing_data_set(calsweep, no_ray, empty_folder):
    code, out, _ = calsweep("doctor", "--data-root", "nowhere", "--json")
    (told,) = [each for each in json.loads(out) if each["subject"] == "dataset cifar10"]
    assert (code, told["mark"]) == (0, "info")
    assert told["remedy"].startswith("allow the download, or get the files from https://")
    assert not (empty_folder / "nowhere").exists()


def test_doctor_readmits_an_excluded_machine_that_passes_all_checks(
    calsweep, no_ray, tmp_path, monkeypatch
):
    storage, here = Storage(tmp_path), os.uname().nodename
    storage.leave_machine_out(here, "OSError: x")
    monkeypatch.setattr(_doctor, "_gpus", lambda: _doctor.Finding("GPUs", "bad", "mend it"))
    assert calsweep("doctor", "--storage", str(tmp_path))[0] == 1
    assert storage.machines_left_out() == [here]
    monkeypatch.undo()
    monkeypatch.setattr(_doctor, "_ray", lambda: _doctor.Finding("Ray", "not asked"))
    code, out, _ = calsweep("doctor", "--storage", str(tmp_path))
    assert code == 0
    assert findings(out)["machine"] == ("ok", "no longer excluded; sweeps start trials here again")
    assert storage.machines_left_out() == []
