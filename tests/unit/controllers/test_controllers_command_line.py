"""``python -m controllers``: JSON fields, keys, files, and bad input in one line."""

import json
import os
import subprocess
import sys

import pytest

from controllers.__main__ import COMMANDS, main, run_until_interrupted
from controllers.models import LengthLaw
from controllers.settings import Settings

KEYS = [
    "law",
    "h0_tokens",
    "h_min_tokens",
    "h_max_tokens",
    "gamma",
    "beta",
    "queue_ref",
    "sigma_ref",
    "k",
    "l_min_ms",
    "b0",
    "alpha_ms",
    "kappa_ms_per_token",
    "prefill_ms_per_token",
    "delay_steps",
    "lengths",
    "queue",
]


def _run(capsys, *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    out = capsys.readouterr().out
    return json.loads(out, parse_constant=pytest.fail)


def test_every_command_is_listed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    for name in ("equilibrium", "margins", "stability-map", "step", "identify", "tune", "report"):
        assert name in COMMANDS
        assert name in out


def test_every_key_is_documented(capsys):
    assert set(KEYS) <= set(Settings.model_fields)
    with pytest.raises(SystemExit):
        main(["margins", "--help"])
    out = capsys.readouterr().out
    assert all(f"  {key} " in out for key in KEYS)


def test_equilibrium(capsys):
    data = _run(capsys, "equilibrium", "--set", "lengths=const:50", "--set", "h0_tokens=400")
    assert {"sigma", "window_tokens", "batch", "regime", "mean_remaining_tokens"} <= set(data)
    a, x = 0.1, 0.8
    assert data["mean_remaining_tokens"] == 25.5
    assert data["sigma"] ** 2 + (x - 1) * data["sigma"] == pytest.approx(2 * a * 400 / 25.5)
    assert data["batch"] == pytest.approx(data["window_tokens"] / 25.5)
    assert data["regime"] == "active"
    idle = _run(capsys, "equilibrium", "--set", "queue=0", "--set", "h0_tokens=200")
    assert (idle["regime"], idle["sigma"], idle["window_tokens"]) == ("idle", 1.0, 200.0)


def test_margins(capsys):
    fields = {
        "stable",
        "gain_margin",
        "phase_margin_deg",
        "disk_margin_alpha",
        "loop_gain",
        "critical_loop_gain",
    }
    data = _run(capsys, "margins", "--set", "gamma=0.15", "--set", "beta=0.2", "--set", "queue=99")
    assert fields <= set(data)
    assert data["stable"] is True
    assert data["critical_loop_gain"] == pytest.approx((2 / 0.15 - 1) * (2 / 0.2 - 1), rel=1e-6)
    assert data["phase_margin_deg"] is None, "infinite is null"
    idle = _run(capsys, "margins", "--set", "h0_tokens=100")
    assert idle["gain_margin"] is None
    assert idle["loop_gain"] == 0
    wild = _run(capsys, "margins", *(
        word for pair in ("gamma=1", "beta=1", "delay_steps=3", "alpha_ms=40", "lengths=const:20")
        for word in ("--set", pair)
    ))  # fmt: skip
    assert wild["stable"] is False
    assert wild["gain_margin"] < 1
    assert wild["disk_margin_alpha"] == 0


def test_stability_map(capsys, tmp_path):
    picture = tmp_path / "map.png"
    data = _run(
        capsys, "stability-map", "--gains", "0.05,1", "--betas", "0.1,0.5,1",
        "--set", "delay_steps=3", "--set", "alpha_ms=40", "--png", str(picture),
    )  # fmt: skip
    assert data["gain_name"] == "gamma"
    assert [len(row) for row in data["stable"]] == [3, 3]
    assert data["stable"][0][0] is True
    assert data["stable"][1][2] is False
    assert data["disk_margin_alpha"][1][2] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("law", ["paper", "regulated", "predictive", "vegas", "aimd", "gradient2"])
@pytest.mark.parametrize("simulation", ["fluid", "requests"])
def test_step(capsys, law, simulation):
    data = _run(capsys, "step", "--steps", "300", "--simulation", simulation, "--set", f"law={law}")
    assert len(data["series"]["window_tokens"]) == 300
    if simulation == "requests":
        assert data["settling_steps"] is data["overshoot_percent"] is None
    elif law == "paper":
        assert data["settled"]
        assert data["final_batch"] == pytest.approx(data["predicted_batch"], rel=1e-3)


def test_ctrl_c_is_one_line_and_exit_130(capsys, monkeypatch):
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("controllers.__main__.main", interrupted)
    assert run_until_interrupted() == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_infinite_phase_margin_is_words(capsys):
    assert main(["margins"]) == 0
    assert "phase margin   infinite: the loop gain never reaches 1" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_config_file_under_assignments(capsys, tmp_path, suffix):
    values = {"law": "regulated", "k": 0.1, "lengths": "uniform:1:99", "h_min_tokens": 50.0}
    path = tmp_path / f"loop.{suffix}"
    if suffix == "json":
        path.write_text(json.dumps({**values, "evidence": {"fit_percent": 93}}))
    else:
        lines = [f"{k} = {json.dumps(v)}" for k, v in values.items()]
        path.write_text("\n".join([*lines, "[evidence]", "fit_percent = 93"]))
    data = _run(capsys, "equilibrium", "--config", str(path), "--set", "sigma_ref=1.2")
    assert data["sigma"] == pytest.approx(1.2)
    assert data["mean_remaining_tokens"] == LengthLaw.uniform(1, 99).residual_mean


@pytest.mark.parametrize("command", ["equilibrium", "margins", "stability-map", "step"])
@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("gamma=nan", ["gamma", "nan", "finite"]),
        ("gamma=1.5", ["gamma", "1.5", "less than or equal to 1"]),
        ("alpha_ms=-1", ["alpha_ms", "-1", "greater than or equal to 0"]),
        ("l_min_ms=inf", ["l_min_ms", "inf"]),
        ("l_min_ms=1e-300", ["l_min_ms", "1e-300"]),
        ("alpha_ms=1e300", ["alpha_ms", "1e+300"]),
        ("gama=0.1", ["gama", "did you mean gamma?"]),
        ("nonsense=1", ["nonsense", "use one of law"]),
        ("lengths=const:-3", ["lengths", "const:-3", "accepted"]),
        ("law=pid", ["law", "pid", "use one of paper"]),
        ("h_min_tokens=9000", ["h_min_tokens", "h_max_tokens", "9000"]),
        ("queue=full", ["queue", "full", "saturated"]),
        ("queue=-3", ["queue", "-3"]),
        ("delay_steps=1.5", ["delay_steps", "1.5"]),
        ("gamma", ["gamma", "key=value"]),
        ("sigma_ref=0.9", ["sigma_ref", "0.9", "greater than 1"]),
        ("beta=true", ["beta", "True"]),
        ("k=2", ["k", "2", "less than or equal to 1"]),
    ],
)
def test_bad_input_is_one_line_and_exit_two(capsys, command, assignment, says):
    assert main([command, "--set", assignment, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for word in says:
        assert word in captured.err


def test_bad_files(capsys, tmp_path):
    torn = tmp_path / "torn.toml"
    torn.write_text("gamma = ")
    unknown = tmp_path / "unknown.json"
    unknown.write_text('{"gammma": 1}')
    for path, says in (
        (tmp_path / "none.toml", "No such file"),
        (torn, "TOML"),
        (unknown, "gamma?"),
    ):
        assert main(["margins", "--config", str(path)]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["margins", "--set", "law=vegas"],
        ["stability-map", "--set", "law=fixed"],
        ["stability-map", "--gains", "0.1,x"],
        ["stability-map", "--gains", "0.1,3"],
        ["stability-map", "--gains", "0.1", "--betas", "0.1", "--png", "/no/such/dir/a.png"],
        ["step", "--steps", "0"],
        ["step", "--simulation", "requests", "--set", "h0_tokens=1e12"],
        ["step", "--window", "-3"],
        ["step", "--window", "3", "--simulation", "requests"],
        ["step", "--seed", "-1"],
    ],
)
def test_other_bad_input(capsys, argv):
    assert main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [[], ["foo"], ["margins", "--sett", "x"], ["step", "--steps", "many"], ["margins", "x"]]
)
def test_bad_arguments_are_one_line_too(capsys, argv):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_keys_that_the_law_does_not_use_are_said(capsys):
    assert main(["margins", "--set", "law=regulated", "--set", "gamma=0.3", "--json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "does not use gamma" in captured.err


def test_text_output_of_every_command(capsys):
    for argv in (["equilibrium"], ["margins"], ["step"], ["stability-map", "--gains", "0.1"]):
        assert main(argv) == 0
        assert len(capsys.readouterr().out.splitlines()) >= 3


def _python(code: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_import_is_light_and_fast():
    loaded = _python(
        "import sys, controllers, controllers.__main__, controllers.laws.registry;"
        "print([m for m in ('control', 'scipy', 'matplotlib', 'torch', 'sglang', 'twp_sglang')"
        " if m in sys.modules])"
    )
    assert loaded.strip() == "[]"
    # The processor's time, not the clock's: the machine may be busy with others.
    took_s = [
        float(_python("import time, controllers; print(time.process_time())")) for _ in range(2)
    ]
    assert min(took_s) < 1.0


def test_module_entry_point_and_closed_pipe():
    done = subprocess.run(
        f"{sys.executable} -m controllers step --json --steps 20000 | head -c 10",
        shell=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("{")


def test_a_file_that_does_not_state_lengths_and_delay_is_said_so(capsys, tmp_path):
    path = tmp_path / "twp.toml"
    path.write_text("gamma = 0.2\n")
    assert main(["margins", "--config", str(path), "--json"]) == 0
    told = capsys.readouterr().err
    assert "does not state lengths and delay_steps" in told
    assert str(path) in told
    stated = ["--set", "lengths=geometric:60", "--set", "delay_steps=1"]
    assert main(["margins", "--config", str(path), "--json", *stated]) == 0
    assert "does not state" not in capsys.readouterr().err
