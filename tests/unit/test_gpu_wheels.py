"""What is packed for a machine without a network: cut down, split, and complete."""

from __future__ import annotations

import os
import tarfile
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tools import flashinfer_kernels
from tools.gpu_wheels import commands, main
from tools.wheel_choice import IMAGE, RELEASES, had, normal, requirements
from tools.wheel_parts import LEFT_OUT, SOURCES, CannotPack, pack, unpack


def wheel(path: Path, files: dict[str, int]) -> Path:
    """A wheel with ``files`` of as many random bytes, which do not compress."""
    rng = np.random.default_rng(1)
    with zipfile.ZipFile(path, "w") as archive:
        for name, size in files.items():
            archive.writestr(name, rng.bytes(size))
    return path


def test_what_a_decode_server_never_loads_is_left_out(tmp_path: Path) -> None:
    given = {
        "sgl_kernel/flash_ops.abi3.so": 5000,
        "sgl_kernel/sm90/common_ops.abi3.so": 100,
        "sgl_kernel/flash_attn.py": 100,
        "flashinfer/data/csrc/fused_moe/x.cu": 5000,
        "flashinfer/data/aot/kept.so": 100,
        "flashinfer/data/csrc/batch_decode_customize_config.jinja": 100,
        "flashinfer/decode.py": 100,
    }
    path = wheel(tmp_path / "a.whl", given)
    site = tmp_path / "site"
    kept, total = unpack(path, site, LEFT_OUT)
    found = {str(p.relative_to(site)) for p in site.rglob("*") if p.is_file()}
    assert found == {name for name, size in given.items() if size == 100}
    assert (kept, total) == (500, 10_500)
    # With the kernels to be compiled there, their sources travel.
    sources = tmp_path / "with-sources"
    unpack(path, sources, [p for p in LEFT_OUT if p not in SOURCES])
    assert (sources / "flashinfer/data/csrc/fused_moe/x.cu").exists()
    assert not (sources / "sgl_kernel/flash_ops.abi3.so").exists()


def test_parts_are_small_enough_and_hold_every_file_once(tmp_path: Path) -> None:
    site, out = tmp_path / "site", tmp_path / "out"
    out.mkdir()
    names = {f"p/{n}.bin": 40_000 + 10_000 * n for n in range(9)}
    unpack(wheel(tmp_path / "a.whl", names), site, ())
    (out / "part-9.tar.gz").write_text("of an earlier run")
    written = pack(site, out, 200_000)
    assert len(written) > 2
    assert sorted(out.iterdir()) == sorted(written)
    packed: list[str] = []
    for part in written:
        assert part.stat().st_size <= 200_000
        with tarfile.open(part) as archive:
            packed += [member.name for member in archive.getmembers()]
            archive.extractall(tmp_path / "there", filter="data")
    assert sorted(packed) == sorted(names)
    for name in names:
        assert (tmp_path / "there" / name).read_bytes() == (site / name).read_bytes()


def test_a_file_that_fits_no_part_is_named(tmp_path: Path) -> None:
    unpack(wheel(tmp_path / "a.whl", {"big/lib.so": 3 * 2**20}), tmp_path / "site", ())
    with pytest.raises(CannotPack, match=r"big/lib\.so takes 3 MiB packed"):
        pack(tmp_path / "site", tmp_path, 2**20)


def test_what_is_there_is_not_packed(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text("Pydantic_Core==1.0\ntorch @ file:///somewhere\n\npydantic==2.0\n")
    have = had(listing)
    assert have == {"pydantic-core", "torch", "pydantic"}
    wanted = [item.split("==")[0] for item in requirements(None, have)]
    assert "pydantic" not in wanted
    assert "pydantic-core" not in wanted
    assert {"flashinfer-python", "apache-tvm-ffi", "control"} <= set(wanted)
    assert f"control=={metadata.version('control')}" in requirements(None, IMAGE)
    assert normal("A_b.C") == "a-b-c"


def test_an_unknown_release_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--sglang", "0.1.0"]) == 2
    assert f"--sglang 0.1.0: known are {', '.join(RELEASES)}" in capsys.readouterr().err


def test_commands_unpack_every_part_and_compile_where_needed() -> None:
    parts = [Path("w/part-1.tar.gz"), Path("w/part-2.tar.gz")]
    ready = "\n".join(commands(parts, compiled=True, engine=False))
    for part in parts:
        assert f"tar -xzf {part} -C" in ready
    assert "flashinfer_kernels" not in ready
    assert "flashinfer_run" not in ready
    later = "\n".join(commands(parts, compiled=False, engine=True))
    assert later.index("flashinfer_kernels") < later.index("profile_step")
    assert "analysis.flashinfer_run" in later


@pytest.mark.skipif(find_spec("flashinfer") is not None, reason="FlashInfer is installed")
def test_kernels_without_flashinfer_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # it sets what nvcc's build reads
    assert flashinfer_kernels.main(["--model", "no-such"]) == 2
    assert "no such shape" in capsys.readouterr().err
    assert flashinfer_kernels.main([]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith("flashinfer_kernels: no ") or "flashinfer" in said[0]
