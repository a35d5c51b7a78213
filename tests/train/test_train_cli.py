import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from train import cli

ROOT = Path(__file__).resolve().parents[2]


def train(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def test_help_and_version_load_no_torch():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom train import cli\n"
        "for flag in ('--help', '--version'):\n"
        "    assert CliRunner().invoke(cli.app, [flag]).exit_code == 0\n"
        "heavy = {'torch', 'trl', 'transformers', 'polars', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_shards_the_usage_is_told():
    result = train()
    assert result.exit_code == 2
    assert "--curriculum" in result.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--curriculum", "nowhere"), "no such folder"),
        (
            ("--curriculum", "nowhere", "--output", "out", "--set", "grpo.promts=1"),
            "did you mean grpo.prompts",
        ),
        (("--curriculum", "nowhere", "--output", "out", "--config", "none.yaml"), "none.yaml"),
        (("--curriculum", "nowhere", "--output", "out", "--resume"), "no run to resume"),
        (("evaluate", "none", "--data", "none.jsonl"), "--databases"),
    ],
)
def test_wrong_usage_is_named_and_exits_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = train(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_missing_extra_says_what_brings_it(monkeypatch):
    monkeypatch.setattr(cli, "NEEDED", ("no_such_module",))
    result = train("--curriculum", "shards")
    assert result.exit_code == 2
    assert 'pip install "nl2sql-curate[train]"' in result.output


def test_a_model_that_does_not_exist_is_a_failure_of_the_work(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = train(
        "--curriculum", shards, "--output", tmp_path / "out", "--model", str(tmp_path / "no-model")
    )
    assert result.exit_code == 1
    assert "no-model" in result.output
