"""A training run from shards to best/: SFT warm start, staged GRPO, greedy evaluation."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import transformers
from accelerate import PartialState

from curate.sql.sandbox import Limits, Sandbox
from curate.sql.testsuite import Suite
from train.callbacks import (
    LEDGER,
    GreedyEvaluation,
    JsonLines,
    LedgerWriter,
    MetricsWriter,
    ProgressBar,
)
from train.config import SCRATCH, Config, ConfigError, save
from train.evaluate import rendering_of
from train.ledger import Ledger
from train.policy import Policy, encode, encode_completions, load_policy, new_policy
from train.progress import Reporter
from train.rewards import Judge, SqlRewards
from train.sampler import StagedDraws
from train.schedule import Schedule
from train.sft import warm_start
from train.shards import Example, ShardError, Shards, read_shards
from train.trainer import CurriculumTrainer

SPARE_TOKENS = 16  # beyond the longest gold
START = "start"  # the policy that GRPO began with
FIGURES_SFT = ("loss", "learning_rate")
FIGURES_GRPO = ("reward", "rewards/execution/mean", "zero_std/total", "entropy")


@dataclass(frozen=True)
class Outcome:
    """evaluations: the lines of eval.jsonl, in order; early: stopped before max_steps."""

    output: Path
    evaluations: list[dict[str, Any]]
    steps: int
    early: bool

    @property
    def best(self) -> dict[str, Any]:
        return max(self.evaluations, key=lambda r: (r["ex"], -r["step"]))


def run(config: Config, *, resume: bool = False, reporter: Reporter | None = None) -> Outcome:
    """Train and write the run's folder. Raises ShardError, ConfigError, OSError (model not found)."""
    quiet_libraries()
    reporter = reporter or Reporter(quiet=not PartialState().is_main_process)
    shards = read_shards(config.curriculum)
    config = _same_shards(config, shards, resume)
    checkpoint = _last_checkpoint(config.output) if resume else None
    config.output.mkdir(parents=True, exist_ok=True)
    if PartialState().is_main_process:
        save(config, config.output / "config.yaml")
    examples, held_out = shards.examples(shards.train), _held_out(shards, config)
    policy, started = _policy(config, examples, resume)
    examples = _fitting(examples, policy, config.sft.max_length, reporter)
    reporter.say(_opening(config, shards, policy, len(examples), len(held_out)))
    if config.sft.epochs and not started:
        _warm_start(policy, examples, config, reporter)
    suites = shards.suites if config.rewards.suite else {}
    examples = _teaching(examples, suites, config, reporter)
    limits = Limits(timeout_s=config.rewards.timeout_s)
    with Sandbox(workers=config.rewards.workers, limits=limits) as sandbox:
        rewards = SqlRewards(sandbox, shards.comparison_mode, suites)
        steps = _grpo(config, shards, policy, examples, held_out, rewards, checkpoint, reporter)
    return Outcome(
        config.output, JsonLines(config.output / "eval.jsonl").read(), steps, steps < config.grpo.max_steps
    )


def quiet_libraries() -> None:
    """The run has its own bars and lines; the libraries' would break them."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(torch|transformers|trl|accelerate|datasets)\b")


def _same_shards(config: Config, shards: Shards, resume: bool) -> Config:
    if resume and config.fingerprint not in (None, shards.fingerprint):
        raise ConfigError(
            f"{config.output} was trained on other shards than {config.curriculum} holds now "
            f"(fingerprint {config.fingerprint}, now {shards.fingerprint}); start a new run without --resume"
        )
    return config.model_copy(update={"fingerprint": shards.fingerprint})


def _last_checkpoint(output: Path) -> Path | None:
    found = [p for p in (output / "checkpoints").glob("checkpoint-*") if (p / "trainer_state.json").exists()]
    return max(found, key=lambda p: int(p.name.rpartition("-")[2]), default=None)


def _held_out(shards: Shards, config: Config) -> list[Example]:
    """A fixed sample of the validation rows: those whose row_id (a hash) comes first."""
    if shards.validation.is_empty():
        raise ShardError(f"{shards.path}: no validation rows, and best/ is chosen by EX on them")
    return shards.examples(shards.validation.sort("row_id").head(config.evaluation.max_rows))


def _policy(config: Config, examples: Sequence[Example], resume: bool) -> tuple[Policy, bool]:
    """The policy, and whether it has its warm start already."""
    start = config.output / "checkpoints" / START
    if resume and (start / "config.json").exists():
        return load_policy(start, bf16=config.grpo.bf16), True
    if config.model != SCRATCH:
        return load_policy(config.model, bf16=config.grpo.bf16), False
    texts = (text for e in examples for text in (e.prompt, f" {e.sql}"))
    return new_policy(texts, config.policy, max_length=config.sft.max_length, seed=config.seed), False


def _fitting(examples: list[Example], policy: Policy, max_length: int, reporter: Reporter) -> list[Example]:
    """Rows whose prompt and gold fit into max_length tokens. Says how many do not, and what vanishes."""
    prompts = encode(policy.tokenizer, [e.prompt for e in examples])
    golds = encode_completions(policy.tokenizer, [e.sql for e in examples])
    fits = [e for e, p, g in zip(examples, prompts, golds, strict=True) if len(p) + len(g) <= max_length]
    if len(fits) < len(examples):
        lost = sorted({e.db_id for e in examples} - {e.db_id for e in fits})
        reporter.say(
            f"{len(examples) - len(fits):,} of {len(examples):,} rows are longer than {max_length} tokens and"
            " are left out" + (f"; with them all rows of {', '.join(lost)}" if lost else "")
        )
    if not fits:
        raise ConfigError(f"no row fits into sft.max_length = {max_length} tokens")
    return fits


def _teaching(
    examples: list[Example], suites: Mapping[str, Suite], config: Config, reporter: Reporter
) -> list[Example]:
    """The rows that GRPO draws from: those with an empty gold result are left out, unless asked for or judged on
    neighbours of the database as well.
    """
    if config.grpo.empty_golds or config.grpo.max_steps == 0:
        return examples
    kept = [e for e in examples if not e.empty_gold or _has_neighbours(e, suites)]
    if not kept:
        raise ConfigError(
            "every gold result is empty: GRPO has no row to draw (grpo.empty_golds=true takes them)"
        )
    if len(kept) < len(examples):
        reporter.say(f"GRPO leaves out {len(examples) - len(kept):,} rows whose gold result is empty")
    return kept


def _has_neighbours(example: Example, suites: Mapping[str, Suite]) -> bool:
    suite = suites.get(example.database)
    return suite is not None and bool(suite.neighbours(*example.gold_sqls))


def _opening(config: Config, shards: Shards, policy: Policy, rows: int, held_out: int) -> str:
    size = sum(p.numel() for p in policy.model.parameters())
    stages = ", ".join(
        f"stage {s}: {n:,}" for s, n in shards.train["stage"].value_counts().sort("stage").iter_rows()
    )
    return (
        f"{shards.name}: {rows:,} training rows ({stages}), {held_out:,} held out; "
        f"policy {config.model}, {size / 1e6:.1f} M parameters; output {config.output}"
    )


def _warm_start(policy: Policy, examples: list[Example], config: Config, reporter: Reporter) -> None:
    lines = JsonLines(config.output / "metrics.jsonl")
    if PartialState().is_main_process:
        lines.path.unlink(missing_ok=True)  # of a warm start that was cut short
    per_step = config.sft.batch_size * PartialState().num_processes
    steps = max(1, round(config.sft.epochs * len(examples) / per_step))
    folder = config.output / "checkpoints"
    with reporter.task("SFT", steps, "steps") as advance:
        callbacks = [MetricsWriter(lines, "sft"), ProgressBar(advance, FIGURES_SFT)]
        warm_start(policy, examples, config, folder=folder, callbacks=callbacks)
    if PartialState().is_main_process:
        policy.save(folder / START)
    PartialState().wait_for_everyone()


def schedule_of(config: Config, shards: Shards) -> Schedule:
    """The shards' schedule, with what the settings override. Raises ConfigError."""
    own = {
        name: getattr(shards.schedule, name)
        for name in ("warmup_steps", "interval_steps", "increment", "floor")
    }
    return Schedule(**own | config.schedule.model_dump(exclude_none=True))


def _grpo(
    config: Config,
    shards: Shards,
    policy: Policy,
    examples: list[Example],
    held_out: list[Example],
    rewards: SqlRewards,
    checkpoint: Path | None,
    reporter: Reporter,
) -> int:
    """The staged GRPO run; the number of optimiser steps at its end."""
    length = config.grpo.max_completion_length or _longest(policy, examples) + SPARE_TOKENS
    ledger = Ledger(examples)
    step = 0
    metrics, evals = (JsonLines(config.output / name) for name in ("metrics.jsonl", "eval.jsonl"))
    if checkpoint is not None:
        step = int(checkpoint.name.rpartition("-")[2])
        ledger.load(checkpoint / LEDGER)
        reporter.say(f"resuming at step {step}")
    if PartialState().is_main_process:
        metrics.forget_after(step if checkpoint else -1)
        evals.forget_after(step if checkpoint else -1)
    PartialState().wait_for_everyone()
    if step >= config.grpo.max_steps > 0:
        return step  # the run was complete
    with reporter.task("GRPO", config.grpo.max_steps, "steps", done=step) as advance:
        evaluation = GreedyEvaluation(
            policy,
            held_out,
            Judge(rewards.judge.sandbox, shards.comparison_mode),
            lines=evals,
            best=config.output / "best",
            every=config.evaluation.every,
            patience=config.evaluation.patience,
            batch_size=config.evaluation.batch_size,
            max_new_tokens=length,
            about=_about(config, shards, length),
            say=reporter.say,
        )
        if config.grpo.max_steps == 0:
            evaluation.evaluate(0)
            return 0
        trainer = CurriculumTrainer(
            policy,
            examples,
            config,
            draws=StagedDraws(
                [e.stage for e in examples],
                [e.weight for e in examples],
                schedule_of(config, shards),
                prompts=config.grpo.prompts,
                seed=config.seed,
            ),
            rewards=rewards.functions(),
            ledger=ledger,
            max_completion_length=length,
            folder=config.output / "checkpoints",
            callbacks=[
                MetricsWriter(metrics, "grpo"),
                evaluation,
                LedgerWriter(ledger, config.output / "ledger.parquet"),
                ProgressBar(advance, FIGURES_GRPO),
            ],
        )
        evaluation.policy = Policy(trainer.accelerator.unwrap_model(trainer.model), policy.tokenizer)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return int(trainer.state.global_step)


def _longest(policy: Policy, examples: list[Example]) -> int:
    return max(len(ids) for ids in encode_completions(policy.tokenizer, [e.sql for e in examples]))


def _about(config: Config, shards: Shards, max_new_tokens: int) -> dict[str, Any]:
    """What evaluating this policy elsewhere needs: kept with best/."""
    rendering = rendering_of(shards)
    return {
        "comparison_mode": shards.comparison_mode,
        "max_new_tokens": max_new_tokens,
        "schema_style": rendering.style,
        "schema_samples": rendering.samples,
        "seen_databases": sorted(shards.train["db_id"].unique()),
        "curriculum": str(config.curriculum),
        "seed": config.seed,
    }
