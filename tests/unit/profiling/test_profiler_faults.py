"""Errors of machines, provoked where this one can, as one line that helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from twp_sglang.profiling.faults import MachineUnfit, explain
from twp_sglang.profiling.flashinfer_attention import FlashInferMissing, import_flashinfer
from twp_sglang.profiling.machine import check_device, choose_device, neighbours

CUDA = torch.device("cuda", 0)
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")


def caught(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_torchs_own_error_of_memory() -> None:
    """The real error of the CPU allocator: no machine has 2^60 bytes."""
    line = explain(caught(lambda: torch.empty(2**60, dtype=torch.uint8)))
    assert line is not None
    assert line.startswith("out of memory (")
    assert "--model" in line


def test_a_gpus_error_of_memory() -> None:
    error = torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
        "of which 3.05 GiB is free. If reserved but unallocated memory is large try setting ..."
    )
    line = explain(error)
    assert line is not None
    assert "Tried to allocate 20.00 GiB" in line
    assert "\n" not in line
    assert len(line) < 400


@needs_no_gpu
def test_a_gpu_that_is_not_there() -> None:
    """The real error of torch on this machine."""
    error = caught(lambda: choose_device("cuda"))
    assert isinstance(error, MachineUnfit)
    assert explain(error) == str(error)
    assert "torch finds no usable GPU" in str(error)
    bare = explain(caught(lambda: torch.zeros(1, device="cuda")))
    assert bare is not None
    assert "no usable GPU" in bare
    assert choose_device("auto").type == "cpu"


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        (
            "CUDA error: no kernel image is available for execution on the device\n"
            "CUDA kernel errors might be asynchronously reported at some other API call",
            "the kernels do not run on this GPU's architecture",
        ),
        (
            "The NVIDIA driver on your system is too old (found version 11040). Please update "
            "your GPU driver by downloading and installing a new version",
            "the GPU driver is too old for this torch",
        ),
        (
            "CUDA driver version is insufficient for CUDA runtime version",
            "the GPU driver is too old for this torch",
        ),
        (
            "CUDA error: all CUDA-capable devices are busy or unavailable",
            "the GPU is busy",
        ),
        (
            "Ninja build failed. Ninja output:\nninja: Entering directory",
            "FlashInfer could not compile its kernels",
        ),
        (
            "No supported CUDA architectures found for major versions [9].",
            "the kernels do not run on this GPU's architecture",
        ),
        ("CUDA error: an illegal memory access was encountered", "a kernel failed on the device"),
    ],
)
def test_errors_of_torch_and_cuda(text: str, starts: str) -> None:
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    for make in (RuntimeError, kind):
        try:
            error = make(text)
        except TypeError:  # torch's class takes an error code as well
            error = make(text, 0)
        line = explain(error)
        assert line is not None
        assert line.startswith(starts)
        assert "\n" not in line


def test_a_fault_of_ours_is_not_explained_away() -> None:
    assert explain(KeyError("layers")) is None
    assert explain(RuntimeError("The size of tensor a (3) must match tensor b (4)")) is None


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    with pytest.raises(MachineUnfit, match=r"Old GPU has compute capability 6\.1"):
        check_device(CUDA, torch.bfloat16, allow_busy=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(MachineUnfit, match="no bfloat16 units"):
        check_device(CUDA, torch.bfloat16, allow_busy=False)


class _Nvml:
    """NVML as nvidia-ml-py shows it."""

    class NVMLError(Exception):
        pass

    def __init__(self, load: int, processes: tuple[int, ...] = (), fails: str = "") -> None:
        self._load, self._processes, self._fails = load, processes, fails

    def nvmlInit(self) -> None:
        if self._fails:
            raise self.NVMLError(self._fails)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [type("Process", (), {"pid": pid})() for pid in self._processes]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return type("Rates", (), {"gpu": self._load})()


def test_neighbours_on_the_gpu() -> None:
    assert neighbours(0, _Nvml(0)) == ("", "")
    busy, note = neighbours(0, _Nvml(97, (4242,)))
    assert busy == "utilisation 97 %, processes 4242"
    assert note == ""
    idle, note = neighbours(0, _Nvml(0, (4242,)))
    assert idle == ""
    assert "idle processes on the GPU: 4242" in note
    unknown, note = neighbours(0, _Nvml(0, fails="Driver Not Loaded"))
    assert unknown == ""
    assert "Driver Not Loaded" in note


def test_a_busy_gpu_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(
        "twp_sglang.profiling.machine.neighbours", lambda index: ("utilisation 97 %", "")
    )
    with pytest.raises(MachineUnfit, match=r"the GPU is busy: utilisation 97 %.*--allow-busy"):
        check_device(CUDA, torch.bfloat16, allow_busy=False)
    assert check_device(CUDA, torch.bfloat16, allow_busy=True) == ("busy: utilisation 97 %",)


def test_a_broken_flashinfer_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name whose own import fails, as with a missing dependency."""
    (tmp_path / "flashinfer.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "flashinfer", raising=False)
    with pytest.raises(FlashInferMissing, match="needs the module no_such_module_at_all"):
        import_flashinfer()
    (tmp_path / "flashinfer.py").write_text("raise RuntimeError('version mismatch\\nmore')\n")
    with pytest.raises(FlashInferMissing, match=r"RuntimeError: version mismatch$"):
        import_flashinfer()
