"""``python -m patches check``: signatures decide, the version only warns."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from synthetic_wheels import modules_for, place_of, write_wheel

from patches.__main__ import main
from patches.contract import Hook
from patches.sglang_0_5.versions import HTTP_TABLES, TABLES

HOOKS = (*TABLES[-1].hooks, *HTTP_TABLES[-1].hooks)
WHEELS = os.environ.get("TWP_SGLANG_WHEELS")


def check(wheel: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["check", "--wheel", str(wheel)])
    output = capsys.readouterr()
    return status, output.out + output.err


@pytest.fixture
def modules() -> dict[str, str]:
    return modules_for(HOOKS)


def test_a_wheel_that_fits_fits_and_an_untried_version_is_a_note(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = check(write_wheel(tmp_path / "s.whl", modules), capsys)
    assert status == 0
    assert "FAIL" not in said
    assert f"sglang 0.5.99: {len(HOOKS)} of {len(HOOKS)} hooks fit" in said
    assert "note: tried on 0.5.20 to 0.5.23" in said


@pytest.mark.parametrize("version", ["0.5.20", "0.5.23", "0.5.22.post1"])
def test_a_tried_version_needs_no_note(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str], version: str
) -> None:
    status, said = check(write_wheel(tmp_path / "s.whl", modules, version), capsys)
    assert status == 0
    assert "note" not in said


@pytest.mark.parametrize("hook", [h for h in HOOKS if h.signatures], ids=lambda h: h.target)
def test_a_changed_signature_fails_and_is_named(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str], hook: Hook
) -> None:
    module, _, name = place_of(hook)
    modules[module] = re.sub(
        rf"def {name}\((.*)\): \.\.\.", rf"def {name}(\1, a_new_one=None): ...", modules[module]
    )
    status, said = check(write_wheel(tmp_path / "s.whl", modules), capsys)
    assert status == 1
    failed = [line for line in said.splitlines() if line.startswith("FAIL")]
    assert any(hook.target in line and "a_new_one" in line for line in failed)


def test_an_older_sglang_is_served_by_the_table_that_it_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = TABLES[0]
    hooks = (*older.hooks, *HTTP_TABLES[-1].hooks)
    wheel = write_wheel(tmp_path / "s.whl", modules_for(hooks), older.last)
    status, said = check(wheel, capsys)
    assert status == 0
    assert "SchedulerRequestReceiver._pull_raw_reqs: self" in said
    # What fits the newer table must not be served by the older: it would relay twice or never.
    both = modules_for(hooks) | modules_for(HOOKS)
    _, said = check(write_wheel(tmp_path / "t.whl", both), capsys)
    assert "_poll_timeout_aborts" in said
    assert "_pull_raw_reqs" not in said


@pytest.mark.parametrize(
    ("module", "line", "name"),
    [
        ("sglang.srt.managers.scheduler", "    waiting_queue = None\n", "Scheduler.waiting_queue"),
        ("sglang.srt.managers.schedule_batch", "    output_ids = None\n", "Req.output_ids"),
        ("sglang.srt.managers.schedule_policy", "    OTHER = None\n", "AddReqResult.OTHER"),
    ],
)
def test_a_missing_attribute_fails_and_is_named(
    tmp_path: Path,
    modules: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    module: str,
    line: str,
    name: str,
) -> None:
    assert line in modules[module]
    modules[module] = modules[module].replace(line, "")
    status, said = check(write_wheel(tmp_path / "s.whl", modules), capsys)
    assert status == 1
    assert f"{module}:{name} is gone" in said


@pytest.mark.parametrize("module", sorted(modules_for(HOOKS)))
def test_a_missing_module_fails_and_what_was_in_it_is_named(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str], module: str
) -> None:
    del modules[module]
    status, said = check(write_wheel(tmp_path / "s.whl", modules), capsys)
    assert status == 1
    failed = "\n".join(line for line in said.splitlines() if line.startswith("FAIL"))
    for hook in HOOKS:
        if hook.target.startswith(module + "."):
            assert f"{hook.target}: no such function" in failed
    assert module in failed


def test_the_last_definition_counts(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = "sglang.srt.managers.scheduler"
    modules[module] = modules[module].replace(
        "    def process_batch_result(self, batch, result): ...\n",
        "    def process_batch_result(self, batch, result): ...\n"
        "    def process_batch_result(self, batch): ...\n",
    )
    status, said = check(write_wheel(tmp_path / "s.whl", modules), capsys)
    assert status == 1
    assert "Scheduler.process_batch_result: takes (self, batch)" in said


def test_an_attribute_set_on_self_anywhere_in_the_class_is_there(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = "sglang.srt.managers.scheduler"
    modules[module] = modules[module].replace(
        "    waiting_queue = None\n",
        "    def set_up(self):\n        self.waiting_queue: list = []\n",
    )
    assert check(write_wheel(tmp_path / "s.whl", modules), capsys)[0] == 0


def test_json_tells_the_same(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    del modules["sglang.srt.managers.schedule_policy"]
    wheel = write_wheel(tmp_path / "s.whl", modules)
    assert main(["check", "--wheel", str(wheel), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["sglang"] == "0.5.99"
    assert not told["ok"]
    assert not told["tried"]
    failed = {hook["target"] for hook in told["hooks"] if not hook["ok"]}
    assert "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req" in failed
    for hook in told["hooks"]:
        assert hook["kind"] in ("before", "after", "around")
        assert hook["why"]
        assert hook["replaces"]
        assert hook["until"]


# -------------------------------------------------------------- nothing to judge: exit 2


def test_a_file_that_is_no_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.whl"
    file.write_text("hello")
    status, said = check(file, capsys)
    assert (status, str(file) in said) == (2, True)
    assert check(tmp_path / "nowhere.whl", capsys)[0] == 2
    assert check(tmp_path, capsys)[0] == 2


def test_a_wheel_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other-1.0.dist-info/METADATA", "Name: other\nVersion: 1.0\n")
    status, said = check(wheel, capsys)
    assert (status, "not a wheel of sglang" in said) == (2, True)


def test_a_source_that_this_python_cannot_parse(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    modules["sglang.srt.managers.scheduler"] = "class Scheduler:\n  def oops(:\n"
    status, said = check(write_wheel(tmp_path / "s.whl", modules), capsys)
    assert status == 2
    assert "sglang/srt/managers/scheduler.py" in said
    assert "Traceback" not in said


def test_a_damaged_wheel(
    tmp_path: Path, modules: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = write_wheel(tmp_path / "s.whl", modules)
    data = bytearray(wheel.read_bytes())
    start = data.find(b"sglang/srt/managers/scheduler.py") + 60
    data[start : start + 30] = bytes(30)
    wheel.write_bytes(data)
    status, said = check(wheel, capsys)
    assert (status, "is damaged" in said) == (2, True)


# --------------------------------------------------------------------- the real ones


def test_the_installed_sglang_fits_and_is_not_imported() -> None:
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("sglang is not installed (base install)")
    code = (
        "import sys\nfrom patches.__main__ import main\n"
        "status = main(['check'])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print('loaded', sorted(loaded & {'torch', 'sglang'}))\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.skipif(
    WHEELS is None, reason="TWP_SGLANG_WHEELS names no folder with SGLang's released wheels"
)
@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_released_wheels_fit(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert WHEELS is not None
    found = sorted(Path(WHEELS).glob(f"sglang-{version}-*.whl"))
    if not found:
        pytest.skip(f"no wheel of {version} in TWP_SGLANG_WHEELS")
    status, said = check(found[0], capsys)
    assert status == 0, said
    assert "note" not in said


@pytest.mark.skipif(
    WHEELS is None, reason="TWP_SGLANG_WHEELS names no folder with SGLang's released wheels"
)
def test_a_release_before_the_range_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert WHEELS is not None
    found = sorted(Path(WHEELS).glob("sglang-0.5.16-*.whl"))
    if not found:
        pytest.skip("no wheel of 0.5.16 in TWP_SGLANG_WHEELS")
    status, said = check(found[0], capsys)
    assert status == 1
    assert "FAIL" in said
    assert "note: tried on 0.5.20 to 0.5.23" in said
