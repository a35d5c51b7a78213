"""Whole tiny runs on CPU."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from curate.sql.sandbox import Sandbox
from curate.sql.testsuite import build_suite
from train import cli
from train.config import ConfigError, resolve
from train.policy import encode
from train.progress import Reporter
from train.run import run
from train.sampler import StagedDraws
from train.shards import ShardError, read_shards
from train.trainer import CurriculumTrainer

TINY = [
    *("policy.hidden_size=48", "policy.layers=1", "policy.heads=2", "policy.vocab_size=400"),
    *("sft.epochs=16", "sft.batch_size=8", "sft.learning_rate=0.01"),
    *("grpo.prompts=4", "grpo.generations=4", "grpo.micro_batch_size=8", "grpo.max_steps=6"),
    *("evaluation.every=2", "evaluation.patience=0", "schedule.warmup_steps=1", "schedule.interval_steps=1"),
]


def tiny(shards, output, *settings):
    return resolve(
        "scratch", settings=[*TINY, *settings], options={"curriculum": str(shards), "output": str(output)}
    )


def quiet(config, **options):
    return run(config, reporter=Reporter(quiet=True), **options)


@pytest.fixture
def drawn(monkeypatch):
    """Every generation batch the trainer was given, as (step, rows)."""
    seen = []
    original = CurriculumTrainer._generate_and_score_completions

    def spy(self, inputs):
        seen.append((self.state.global_step, [x["row"] for x in inputs]))
        return original(self, inputs)

    monkeypatch.setattr(CurriculumTrainer, "_generate_and_score_completions", spy)
    return seen


@pytest.mark.slow
def test_a_run_writes_its_folder_and_learns(shards, tmp_path, drawn):
    outcome = quiet(tiny(shards, tmp_path / "run"))
    out = tmp_path / "run"
    assert {p.name for p in out.iterdir()} == {
        *("config.yaml", "metrics.jsonl", "eval.jsonl", "ledger.parquet", "checkpoints", "best")
    }
    assert outcome.steps == 6
    assert [r["step"] for r in outcome.evaluations] == [0, 2, 4, 6]
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics if m["phase"] == "grpo"] == [1, 2, 3, 4, 5, 6]
    losses = [m["loss"] for m in metrics if m["phase"] == "sft" and "loss" in m]
    assert losses[-1] < losses[0]
    assert all("zero_std/total" in m for m in metrics if m["phase"] == "grpo")
    best = json.loads((out / "best" / "evaluation.json").read_text())
    assert best["ex"] == max(r["ex"] for r in outcome.evaluations)
    start = load_file(out / "checkpoints" / "start" / "model.safetensors")
    last = load_file(out / "checkpoints" / "checkpoint-6" / "model.safetensors")
    assert any(not torch.equal(start[k], last[k]) for k in start)
    ledger = pl.read_parquet(out / "ledger.parquet")
    assert ledger["drawn"].sum() == 6 * 4
    assert ledger["completions"].sum() == 6 * 16


@pytest.mark.slow
def test_the_trainer_draws_what_the_plan_says(shards, tmp_path, drawn):
    """The trainer neither shuffles the curriculum nor skips in it."""
    config = tiny(shards, tmp_path / "run", "sft.epochs=1")
    quiet(config)
    found = read_shards(shards)
    plan = StagedDraws(
        found.train["stage"].to_list(),
        found.train["weight"].to_list(),
        type(found.schedule)(1, 1, 0.33, 0.34),
        prompts=4,
        seed=0,
    )
    assert [rows[::4] for _, rows in drawn] == [plan.draw(step) for step in range(6)]
    assert all(rows[i] == rows[i // 4 * 4] for _, rows in drawn for i in range(16))


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(shards, tmp_path, drawn):
    whole = quiet(tiny(shards, tmp_path / "whole"))
    expected, drawn[:] = list(drawn), []

    cut = tmp_path / "cut"
    quiet(tiny(shards, cut, "grpo.max_steps=4"))
    # killed after step 5 was logged, before its checkpoint
    with (cut / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"phase": "grpo", "step": 5, "loss": 9.9}) + '\n{"phase": "gr')
    shutil.rmtree(cut / "best")
    shutil.copytree(tmp_path / "whole" / "best", cut / "best")
    drawn.clear()
    resumed = quiet(tiny(shards, cut, "grpo.max_steps=6"), resume=True)

    assert drawn == expected[4:]
    assert resumed.evaluations == whole.evaluations
    for name in ("eval.jsonl",):
        assert (cut / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert pl.read_parquet(cut / "ledger.parquet").equals(
        pl.read_parquet(tmp_path / "whole" / "ledger.parquet")
    )
    one = load_file(tmp_path / "whole" / "checkpoints" / "checkpoint-6" / "model.safetensors")
    other = load_file(cut / "checkpoints" / "checkpoint-6" / "model.safetensors")
    assert all(torch.equal(one[k], other[k]) for k in one)
    steps = [json.loads(line)["step"] for line in (cut / "metrics.jsonl").read_text().splitlines()]
    assert steps[-6:] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_one_seed_gives_one_run(shards, tmp_path):
    runs = [quiet(tiny(shards, tmp_path / name, "grpo.max_steps=2")) for name in ("a", "b")]
    other = quiet(tiny(shards, tmp_path / "c", "grpo.max_steps=2", "seed=1"))
    assert runs[0].evaluations == runs[1].evaluations
    weights = [
        load_file(tmp_path / n / "checkpoints" / "checkpoint-2" / "model.safetensors")
        for n in ("a", "b", "c")
    ]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    assert other.output.name == "c"
    assert any(not torch.equal(weights[0][k], weights[2][k]) for k in weights[0])


@pytest.mark.slow
def test_dropping_silent_groups_leaves_the_update_as_it_was(shards, tmp_path, monkeypatch):
    """A group of equal rewards has no gradient, so a run without its rows ends in the same weights."""
    settings = ("grpo.max_steps=1", "grpo.temperature=0.3", "grpo.prompts=8")  # so that some groups agree
    quiet(tiny(shards, tmp_path / "dropped", *settings))
    monkeypatch.setattr("train.trainer.TOKEN_LOSSES", ())
    quiet(tiny(shards, tmp_path / "kept", *settings))
    metrics = [json.loads(x) for x in (tmp_path / "kept" / "metrics.jsonl").read_text().splitlines()]
    assert 0 < metrics[-1]["zero_std/total"] < 1  # else the comparison would say nothing
    one, other = (
        torch.load(tmp_path / n / "checkpoints" / "checkpoint-1" / "optimizer.pt")["state"]
        for n in ("dropped", "kept")
    )
    for i in one:  # the first moment is the gradient, scaled
        torch.testing.assert_close(one[i]["exp_avg"], other[i]["exp_avg"], rtol=1e-3, atol=1e-7)


@pytest.mark.slow
def test_a_run_that_gets_no_better_stops(shards, tmp_path):
    settings = ("grpo.max_steps=20", "grpo.learning_rate=1e-12", "evaluation.patience=2", "sft.epochs=1")
    outcome = quiet(tiny(shards, tmp_path / "run", *settings))
    assert outcome.early
    assert outcome.steps == 4
    assert json.loads((tmp_path / "run" / "best" / "evaluation.json").read_text())["step"] == 0


@pytest.mark.slow
def test_rows_that_are_too_long_are_left_out_and_told(shards, tmp_path, capsys):
    run(tiny(shards, tmp_path / "run", "sft.max_length=60", "sft.epochs=1", "grpo.max_steps=0"))
    assert "rows are longer than 60 tokens and are left out" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no row fits"):
        quiet(tiny(shards, tmp_path / "other", "sft.max_length=32"))


def flag(shards, stages):
    """Mark every row of the stages as one with an empty gold result."""
    for file in shards.glob("stage-*/*.parquet"):
        frame = pl.read_parquet(file)
        empty = frame["stage"].is_in(stages)
        flags = pl.Series("flags", [["empty_result"] if e else [] for e in empty], dtype=pl.List(pl.String))
        frame.with_columns(flags).write_parquet(file)


@pytest.mark.slow
def test_rows_with_an_empty_gold_result_are_not_drawn(shards, tmp_path, drawn, capsys):
    flag(shards, [1])
    settings = ("sft.epochs=0.1", "grpo.max_steps=2")
    run(tiny(shards, tmp_path / "run", *settings))
    assert "GRPO leaves out 12 rows whose gold result is empty" in capsys.readouterr().err
    assert set(pl.read_parquet(tmp_path / "run" / "ledger.parquet")["stage"]) == {2, 3}
    flag(shards, [1, 2, 3])
    with pytest.raises(ConfigError, match="every gold result is empty"):
        quiet(tiny(shards, tmp_path / "none", *settings))
    outcome = quiet(tiny(shards, tmp_path / "asked", "grpo.empty_golds=true", *settings))
    assert outcome.steps == 2


@pytest.mark.slow
def test_rewards_are_judged_on_the_test_suites_of_the_shards(shards, tmp_path, drawn, capsys):
    """Rows with an empty gold are drawn where a suite can tell right from wrong."""
    flag(shards, [1, 2, 3])
    about = json.loads((shards / "curriculum.json").read_text())
    golds = pl.concat([pl.read_parquet(f) for f in shards.glob("*/*.parquet")], how="diagonal")
    with Sandbox() as sandbox:
        for db_id, path in about["databases"].items():
            sqls = golds.filter(pl.col("db_id") == db_id)["sql"].to_list()
            build_suite(shards / path, sqls, (shards / path).parent / "suite", sandbox)
    suites = {d: str(Path(p).parent / "suite") for d, p in about["databases"].items()}
    (shards / "curriculum.json").write_text(json.dumps({**about, "suites": suites}))
    settings = ("sft.epochs=0.1", "grpo.max_steps=2")
    run(tiny(shards, tmp_path / "run", *settings))
    assert "GRPO leaves out" in capsys.readouterr().err
    told = {sql for s in read_shards(shards).suites.values() for sql in s.fits}
    rows = pl.read_parquet(tmp_path / "run" / "ledger.parquet").join(golds, on="row_id")
    assert set(rows["sql"]) <= told
    with pytest.raises(ConfigError, match="every gold result is empty"):
        quiet(tiny(shards, tmp_path / "off", "rewards.suite=false", *settings))


def test_other_shards_cannot_be_resumed_on(write_shards, tmp_path):
    config = tiny(write_shards(fingerprint="new"), tmp_path / "run").model_copy(update={"fingerprint": "old"})
    with pytest.raises(ConfigError, match="other shards"):
        quiet(config, resume=True)


def test_shards_without_validation_rows_are_refused(write_shards, tmp_path):
    with pytest.raises(ShardError, match="no validation rows"):
        quiet(tiny(write_shards(validation={"rows": 0, "files": []}), tmp_path / "run"))


def cli_train(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.mark.slow
def test_train_and_evaluate_from_the_command_line(shards, databases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [x for s in TINY for x in ("--set", s)]
    result = cli_train("--curriculum", shards, "--max-steps", 2, "--seed", 1, *options)
    assert result.exit_code == 0, result.output
    assert "held-out EX" in result.output
    out = tmp_path / "runs" / "toy"
    assert (out / "best" / "model.safetensors").exists()

    assert cli_train("--curriculum", shards, "--output", out).exit_code == 2
    more = cli_train("--curriculum", shards, "--output", out, "--resume", "--max-steps", 4)
    assert more.exit_code == 0, more.output
    assert [json.loads(x)["step"] for x in (out / "eval.jsonl").read_text().splitlines()] == [0, 2, 4]

    again = cli_train("evaluate", out, "--data", shards)
    assert again.exit_code == 0, again.output
    found = json.loads((out / "evaluation-shards.json").read_text())
    best = json.loads((out / "best" / "evaluation.json").read_text())
    assert (found["ex"], found["rows"]) == (best["ex"], best["rows"])
    assert found["by_database"]["unseen"]["rows"] == 0

    held = tmp_path / "held.jsonl"
    held.write_text(
        '{"question": "list the name of every item", "sql": "SELECT name FROM item", "db_id": "shop"}\n'
    )
    from_file = cli_train(
        "evaluate", out, "--data", held, "--databases", databases, "--output", tmp_path / "e.json"
    )
    assert from_file.exit_code == 0, from_file.output
    assert json.loads((tmp_path / "e.json").read_text())["rows"] == 1

    on_suites = cli_train("evaluate", out, "--data", shards, "--mode", "suite")
    assert on_suites.exit_code == 0, on_suites.output
    stricter = json.loads((out / "evaluation-shards.json").read_text())
    assert stricter["test_suites"]
    assert stricter["right"] + stricter["reasons"].get("near_miss", 0) == found["right"]


def test_grpo_generates_from_the_very_ids_that_sft_trained_on(shards, tmp_path):
    """A prompt that differs by one space between training and evaluation costs accuracy unseen."""
    from train.policy import new_policy

    config = tiny(shards, tmp_path / "run")
    found = read_shards(shards)
    examples = found.examples(found.train)
    policy = new_policy([e.prompt for e in examples], config.policy, max_length=256, seed=0)
    trainer = CurriculumTrainer(
        policy,
        examples,
        config,
        draws=StagedDraws(
            [e.stage for e in examples], [1.0] * len(examples), found.schedule, prompts=4, seed=0
        ),
        rewards=[lambda completions, **_: [0.0] * len(completions)] * 3,
        ledger=None,
        max_completion_length=8,
        folder=tmp_path / "run",
        callbacks=[],
    )
    prompts = trainer.train_dataset["prompt"][:5]
    assert trainer._tokenize_prompts(prompts)[0] == encode(policy.tokenizer, [e.prompt for e in examples[:5]])
