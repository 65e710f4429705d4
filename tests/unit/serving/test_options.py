"""The command line: precedence, and every bad configuration in one message and exit 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from twp_sglang.config_values import OptionsError
from twp_sglang.serving.launch import main
from twp_sglang.serving.options import flag_of, parse, parser


def refused(*argv: str) -> str:
    with pytest.raises(OptionsError) as caught:
        parse(list(argv))
    return str(caught.value)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# ------------------------------------------------------------------- what is taken


def test_without_flags_everything_is_default_and_the_engine_gets_it_all() -> None:
    argv = ["--model-path", "m", "--tp", "2", "--json-model-override-args", '{"a": -1}', "-x", "-5"]
    asked = parse(argv)
    assert asked.config.policy == "slo"
    assert asked.given == {}
    assert asked.engine_argv == argv
    assert not asked.help_wanted


def test_our_flags_are_taken_out_in_both_spellings() -> None:
    asked = parse(["--model-path", "m", "--twp-gamma", "0.2", "--tp", "2", "--twp-b0=12"])
    assert (asked.config.gamma, asked.config.b0) == (0.2, 12)
    assert asked.engine_argv == ["--model-path", "m", "--tp", "2"]
    assert asked.given == {"gamma": "flag --twp-gamma", "b0": "flag --twp-b0"}


def test_there_is_one_flag_per_field() -> None:
    from twp_sglang.config import TwpConfig

    known = {word for action in parser()._actions for word in action.option_strings}
    wanted = {flag_of(name) for name in TwpConfig.model_fields if name != "evidence"}
    files = {"--twp-config", "--twp-profile", "--twp-trace", "--twp-emulate"}
    assert known == wanted | files | {"--twp-itl-slo", "--twp-ttft-slo"}
    assert flag_of("h_min_tokens") == "--twp-h-min-tokens"


@pytest.mark.parametrize("text", ["50ms", "0.05s", "5e1ms", "0.05 s"])
def test_an_objective_is_stated_with_its_unit(text: str, tmp_path: Path) -> None:
    by_flag = parse(["--twp-itl-slo", text, "--twp-ttft-slo=2s"])
    file = written(tmp_path, "twp.toml", f'itl_slo = "{text}"\nttft_slo = "2000ms"\n')
    by_file = parse(["--twp-config", file])
    in_ms = parse(["--twp-itl-slo-ms", "50", "--twp-ttft-slo-ms", "2000"])
    assert by_flag.config == by_file.config == in_ms.config
    assert by_flag.given == {
        "itl_slo_ms": "flag --twp-itl-slo",
        "ttft_slo_ms": "flag --twp-ttft-slo",
    }


def test_a_flag_in_one_spelling_overrides_a_file_in_the_other(tmp_path: Path) -> None:
    file = written(tmp_path, "twp.toml", 'itl_slo_ms = 30\nttft_slo = "auto"\n')
    asked = parse(["--twp-config", file, "--twp-itl-slo", "auto", "--twp-ttft-slo-ms", "900"])
    assert (asked.config.itl_slo_ms, asked.config.ttft_slo_ms) == ("auto", 900.0)


def test_none_unsets_an_optional_field() -> None:
    assert parse(["--twp-forced-per-step", "none"]).config.forced_per_step is None


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert parse(["--twp-gamma", "0.2", "--twp-gamma", "0.3"]).config.gamma == 0.3


def test_help_is_noticed_and_left_to_the_engine_too() -> None:
    asked = parse(["--help"])
    assert asked.help_wanted
    assert asked.engine_argv == ["--help"]


def test_the_help_text_can_be_printed() -> None:
    text = parser().format_help()
    assert "--twp-h-min-tokens" in text
    assert "--twp-profile" in text


def test_defaults_profile_file_flags_in_this_order(tmp_path: Path) -> None:
    profile = written(
        tmp_path,
        "profile.json",
        json.dumps({"twp": {"l_min_ms": 11.0, "b0": 11, "alpha_ms": 11.0, "h0_tokens": None}}),
    )
    file = written(tmp_path, "twp.toml", "b0 = 22\nalpha_ms = 22.0\ngamma = 0.22\n")
    asked = parse(["--twp-alpha-ms", "33", "--twp-config", file, "--twp-profile", profile])
    config = asked.config
    assert (config.l_min_ms, config.b0, config.alpha_ms) == (11.0, 22, 33.0)
    assert (config.gamma, config.beta, config.h0_tokens) == (0.22, 0.25, None)
    assert asked.given == {
        "l_min_ms": f"profile {profile}",
        "b0": f"file {file}",
        "gamma": f"file {file}",
        "alpha_ms": "flag --twp-alpha-ms",
    }


def test_toml_and_json_files_mean_the_same(tmp_path: Path) -> None:
    toml = written(tmp_path, "a.toml", 'policy = "fcfs"\ngamma = 0.2\n')
    as_json = written(tmp_path, "a.JSON", '{"policy": "fcfs", "gamma": 0.2}')
    assert parse(["--twp-config", toml]).config == parse(["--twp-config", as_json]).config


def test_a_profile_may_hold_its_fields_at_the_top(tmp_path: Path) -> None:
    profile = written(tmp_path, "p.json", '{"l_min_ms": 9.5, "machine": "mine"}')
    assert parse(["--twp-profile", profile]).config.l_min_ms == 9.5


def test_a_trace_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert parse(["--twp-trace", str(folder)]).trace_dir == folder
    assert list(folder.iterdir()) == []


# ----------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--twp-itl-slo", "50"], ["itl_slo = 50", "--twp-itl-slo", "for example 50ms"]),
        (["--twp-ttft-slo", "2"], ["ttft_slo = 2", "--twp-ttft-slo", "for example 2s"]),
        (["--twp-itl-slo", "5min"], ["itl_slo = '5min'", "with its unit", "or auto"]),
        (["--twp-itl-slo", "-5ms"], ["itl_slo = '-5ms'", "above 0"]),
        (["--twp-itl-slo", "none"], ["itl_slo = None", "for example 50ms"]),
        (["--twp-itl-slo-ms", "50ms"], ["itl_slo_ms = '50ms'", "itl_slo = 50ms"]),
        (["--twp-ttft-slo-ms", "0"], ["ttft_slo_ms = 0", "above 0"]),
        (
            ["--twp-itl-slo", "50ms", "--twp-itl-slo-ms", "40"],
            ["itl_slo = '50ms'", "itl_slo_ms = 40", "leave one out"],
        ),
    ],
)
def test_a_bad_objective_is_named_with_value_source_and_mend(
    argv: list[str], named: list[str]
) -> None:
    message = refused(*argv)
    assert [word for word in named if word not in message] == []


def test_both_spellings_in_one_file_name_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "twp.toml", 'ttft_slo_ms = 30\nttft_slo = "auto"\n')
    assert "ttft_slo = 'auto' and ttft_slo_ms = 30" in (message := refused("--twp-config", file))
    assert file in message


@pytest.mark.parametrize("value", ["-0.15", "-1e-3", "-inf", "nan", "fast", "none", "true"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_bad_gain_is_named_with_its_value_source_and_mend(value: str, joined: bool) -> None:
    argv = [f"--twp-gamma={value}"] if joined else ["--twp-gamma", value]
    message = refused(*argv)
    assert message.startswith("gamma = ")
    assert "(flag --twp-gamma)" in message
    assert "window gain" in message


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (
            ["--twp-h-min-tokens", "900", "--twp-h-max-tokens", "800"],
            ["h_min_tokens = 900", "h_max_tokens = 800", "lower h_min_tokens"],
        ),
        (
            ["--twp-w-starvation", "0.2"],
            ["w_starvation = 0.2", "w_balance = 0.3", "strictly descending"],
        ),
        (["--twp-gama", "0.2"], ["--twp-gama", "no such flag", "--twp-gamma"]),
        (["--twp-gama=0.2"], ["--twp-gama=0.2", "no such flag", "--twp-gamma"]),
        (["--twp-t-max-steps", "2.5"], ["t_max_steps = 2.5", "integer"]),
        (["--twp-policy", "best"], ["policy = 'best'", "'fcfs'", "'twp'"]),
        (["--twp-gamma"], ["--twp-gamma", "expected one argument"]),
        (["--twp-gamma", "--twp-b0", "3"], ["--twp-gamma", "expected one argument"]),
    ],
)
def test_flags_that_cannot_be_used(argv: list[str], parts: list[str]) -> None:
    message = refused(*argv)
    for part in parts:
        assert part in message


def test_several_problems_are_told_at_once() -> None:
    message = refused("--twp-gamma", "-1", "--twp-beta", "7")
    assert "gamma = -1" in message
    assert "beta = 7" in message


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("a.toml", "gamma = ", ["is not TOML"]),
        ("a.json", '{"gamma": ', ["is not JSON"]),
        ("a.json", '[{"gamma": 0.2}]', ["one table"]),
        ("a.json", "[" * 100_000, ["nested too deeply"]),
        ("a.json", '{"gamma": ' + "9" * 5000 + "}", ["a.json"]),
        ("a.json", '{"gamma": 0.2, "gamma": 0.3}', ["gamma is given twice"]),
        ("a.toml", "gamma = 0.2\ngamma = 0.3", ["is not TOML"]),
        ("a.json", '{"gamma": NaN}', ["gamma = nan", "finite"]),
        ("a.toml", "gamma = nan", ["gamma = nan", "finite"]),
        ("a.toml", 'gamma = "0.2"', ["gamma = '0.2'", "must be a number"]),
        ("a.toml", "gamma = true", ["gamma = True", "must be a number"]),
        ("a.toml", "gama = 0.2", ["gama = 0.2", "no such field", "did you mean gamma?"]),
        ("a.toml", "xyzzy = 1", ["xyzzy = 1", "no such field", "--help"]),
        ("a.toml", "gamma = -1", ["gamma = -1", "greater than 0", "window gain"]),
        ("a.toml", "[gamma]\nx = 1", ["gamma = ", "number"]),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, parts: list[str]) -> None:
    file = written(tmp_path, name, text)
    message = refused("--twp-config", file)
    for part in [*parts, file]:
        assert part in message
    assert "\n" not in message


def test_a_flag_that_mends_the_file_is_enough(tmp_path: Path) -> None:
    file = written(tmp_path, "a.toml", "gamma = -1")
    assert parse(["--twp-config", file, "--twp-gamma", "0.2"]).config.gamma == 0.2


@pytest.mark.parametrize("flag", ["--twp-config", "--twp-profile"])
def test_files_that_cannot_be_read(tmp_path: Path, flag: str) -> None:
    missing = str(tmp_path / "nowhere.toml")
    assert "No such file" in refused(flag, missing)
    assert missing in refused(flag, missing)
    assert "directory" in refused(flag, str(tmp_path))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00gamma")
    assert "cannot be read" in refused(flag, str(binary))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    file = Path(written(tmp_path, "a.toml", "gamma = 0.2"))
    file.chmod(0)
    assert "Permission denied" in refused("--twp-config", str(file))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{}", "holds none of l_min_ms"),
        ('{"twp": 3}', "twp = 3"),
        ('{"twp": {"l_min_ms": null}}', "holds none of"),
        ('{"l_min_ms": -2}', "l_min_ms = -2 (profile"),
    ],
)
def test_profiles_that_cannot_be_used(tmp_path: Path, text: str, part: str) -> None:
    assert part in refused("--twp-profile", written(tmp_path, "p.json", text))


def test_a_trace_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = written(tmp_path, "file", "")
    message = refused("--twp-trace", file + "/inside")
    assert "--twp-trace" in message
    assert "cannot be written" in message


# ------------------------------------------------------------------ the whole program


@pytest.mark.parametrize(
    "argv",
    [
        ["--twp-gamma", "-0.15"],
        ["--twp-h-min-tokens", "9", "--twp-h-max-tokens", "8"],
        ["--twp-w-fairness", "0.5"],
        ["--twp-gama", "0.2"],
        ["--twp-gamma", "nan"],
        ["--twp-t-max-steps", "often"],
        ["--twp-config", "nowhere.toml"],
    ],
)
def test_the_program_exits_2_with_one_message(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--model-path", "no-such-model"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("twp: ")
    assert output.err.count("\n") == 1


def test_a_bad_configuration_is_refused_before_torch_or_sglang_is_imported() -> None:
    code = (
        "import sys\n"
        "from twp_sglang.serving.launch import main\n"
        "status = main(['--twp-gamma', '-1', '--model-path', 'no-such-model'])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(status, sorted(loaded & {'torch', 'sglang', 'transformers'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "2 []"
    assert "Traceback" not in done.stderr


def test_the_module_as_it_is_typed(tmp_path: Path) -> None:
    file = written(tmp_path, "twp.toml", "gamma = -0.15")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "twp_sglang.launch_server",
         "--twp-config", file, "--model-path", "no-such-model"],
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(said) == 1
    assert said[0].startswith(f"twp: gamma = -0.15 (file {file})")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "numpy" in imported or "pydantic" in imported
    assert not imported & {"torch", "sglang", "transformers"}


def test_a_file_unsets_an_optional_field_as_a_flag_does(tmp_path: Path) -> None:
    path = tmp_path / "twp.toml"
    path.write_text('forced_per_step = "none"\n')
    assert parse(["--twp-config", str(path)]).config.forced_per_step is None
