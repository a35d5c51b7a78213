"""The settings of a run. Saved whole as config.yaml in its output folder, so that a run says what made it.

Precedence: defaults for the kind of policy, then --config FILE, then --set KEY=VALUE, then other options.
"""

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SCRATCH = "scratch"
SMALL_MODEL = "Qwen/Qwen2.5-Coder-0.5B-Instruct"


class ConfigError(Exception):
    """Every problem of the settings, one a line."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyConfig(Section):
    """The from-scratch policy (a Llama of a few million parameters). Unused with a pretrained model."""

    vocab_size: int = Field(1024, ge=300, description="tokens of its byte-level BPE, learnt from the shards")
    hidden_size: int = Field(288, ge=16)
    layers: int = Field(2, ge=1, description="few and wide learns to copy names soonest at this size")
    heads: int = Field(6, ge=1)

    @model_validator(mode="after")
    def _divides(self) -> "PolicyConfig":
        if self.hidden_size % self.heads or self.hidden_size // self.heads % 2:
            raise ValueError("hidden_size must be an even multiple of heads")
        return self


class SftConfig(Section):
    """The warm start by supervised fine-tuning on the gold SQL of all stages. epochs 0 skips it."""

    epochs: float = Field(3.0, ge=0)
    batch_size: int = Field(16, ge=1)
    micro_batch_size: int = Field(16, ge=1, description="sequences in memory at once")
    learning_rate: float = Field(1e-3, gt=0)
    lr_scheduler: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="the rate falls to 0 in GRPO instead: a policy already cooled gains little there",
    )
    adam_beta2: float = Field(0.95, gt=0, lt=1, description="0.999 is slow and unsteady in runs this short")
    weight_decay: float = Field(0.01, ge=0)
    warmup_share: float = Field(0.05, ge=0, le=1, description="share of steps in which the rate rises")
    max_length: int = Field(
        768, ge=32, description="tokens; longer rows are left out of SFT and GRPO, and told"
    )


class GrpoConfig(Section):
    """Staged GRPO. A step draws `prompts` rows and samples `generations` completions of each."""

    max_steps: int = Field(60, ge=0)
    prompts: int = Field(16, ge=1)
    generations: int = Field(8, ge=2)
    micro_batch_size: int = Field(
        64, ge=1, description="completions in memory at once; divides prompts x generations"
    )
    iterations: int = Field(1, ge=1, description="optimiser steps on one set of generations")
    temperature: float = Field(1.0, gt=0)
    max_completion_length: int | None = Field(None, ge=8, description="tokens; default: the longest gold's")
    learning_rate: float = Field(2e-4, gt=0)
    lr_scheduler: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: int = Field(
        5, ge=0, description="without it Adam's first steps undo some of the warm start"
    )
    max_grad_norm: float = Field(1.0, gt=0)
    loss_type: str = Field("dapo", description="a loss of TRL's GRPOTrainer")
    scale_rewards: Literal["group", "batch", "none"] = Field(
        "batch",
        description="'group' makes as much of a tiny difference in partial credit as of right and wrong",
    )
    adam_beta2: float = Field(0.999, gt=0, lt=1)
    beta: float = Field(0.0, ge=0, description="weight of the KL term; 0 loads no reference model")
    epsilon: float = Field(0.2, gt=0)
    epsilon_high: float = Field(0.28, gt=0)
    entropy_coef: float = 0.0
    empty_golds: bool = Field(
        False, description="draw rows whose gold result is empty too: any other empty result equals it"
    )
    mask_truncated: bool = Field(False, description="leave completions without an end out of the loss")
    bf16: bool = False
    gradient_checkpointing: bool = False


class RewardConfig(Section):
    """Weights sum to 1; execution outweighs the rest, so that a wrong SQL never outranks a right one."""

    execution: float = Field(0.6, gt=0.5, le=1)
    syntax: float = Field(0.2, ge=0)
    structure: float = Field(0.2, ge=0)
    suite: bool = Field(
        True,
        description="a right SQL is right on the neighbours of the shards' test suites too, if they have any",
    )
    timeout_s: float = Field(5.0, gt=0, description="of one execution, seconds")
    workers: int = Field(1, ge=1, description="processes that execute SQL")

    @model_validator(mode="after")
    def _sum(self) -> "RewardConfig":
        if abs(self.execution + self.syntax + self.structure - 1) > 1e-9:
            raise ValueError("execution + syntax + structure must be 1")
        return self


class ScheduleConfig(Section):
    """Overrides of the shards' schedule, in optimiser steps (see train/schedule.py). None: the shards'."""

    warmup_steps: int | None = Field(None, ge=0)
    interval_steps: int | None = Field(None, ge=1)
    increment: float | None = Field(None, gt=0, le=1)
    floor: float | None = Field(None, ge=0, le=1)


class EvaluationConfig(Section):
    """Greedy execution accuracy (EX) on the shards' validation rows; chooses best/ and stops the run."""

    every: int = Field(20, ge=1, description="optimiser steps; a checkpoint is written at the same steps")
    max_rows: int = Field(500, ge=1, description="rows evaluated, a fixed sample of the validation rows")
    batch_size: int = Field(128, ge=1)
    patience: int = Field(
        5, ge=0, description="evaluations without a new best before stopping; 0 never stops"
    )
    keep_checkpoints: int = Field(2, ge=1)


class Config(Section):
    curriculum: Path
    output: Path
    model: str = SCRATCH
    seed: int = 0
    fingerprint: str | None = Field(None, description="of the shards; a resumed run must have the same")
    policy: PolicyConfig = PolicyConfig()
    sft: SftConfig = SftConfig()
    grpo: GrpoConfig = GrpoConfig()
    rewards: RewardConfig = RewardConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _batches(self) -> "Config":
        batch, micro = self.grpo.prompts * self.grpo.generations, self.grpo.micro_batch_size
        if batch % min(micro, batch):
            raise ValueError(f"grpo.micro_batch_size {micro} must divide prompts x generations = {batch}")
        if self.sft.batch_size % min(self.sft.micro_batch_size, self.sft.batch_size):
            raise ValueError("sft.micro_batch_size must divide sft.batch_size")
        if self.evaluation.every % self.grpo.iterations:
            raise ValueError(
                "evaluation.every must be a multiple of grpo.iterations, else a run could not resume"
            )
        return self


# A small policy forgets a stage that it is not shown within a few steps: all stages open almost at once.
SCRATCH_DEFAULTS: dict[str, Any] = {
    "schedule": {"warmup_steps": 2, "interval_steps": 1, "increment": 0.33, "floor": 0.34},
}

# A pretrained model: rates and lengths of the field's text-to-SQL runs; SFT by choice only, since a weak
# warm start lowers what GRPO reaches.
PRETRAINED_DEFAULTS: dict[str, Any] = {
    "sft": {
        "epochs": 0,
        "batch_size": 32,
        "micro_batch_size": 4,
        "learning_rate": 1e-5,
        "lr_scheduler": "cosine",
        "adam_beta2": 0.999,
        "weight_decay": 0.0,
        "max_length": 4096,
    },
    "grpo": {
        "max_steps": 200,
        "micro_batch_size": 16,
        "learning_rate": 1e-6,
        "lr_scheduler": "constant",
        "max_completion_length": 512,
        "bf16": True,
        "gradient_checkpointing": True,
    },
    "evaluation": {"batch_size": 64},
}


def resolve(
    model: str,
    *,
    file: Path | None = None,
    settings: list[str] | None = None,
    options: dict[str, Any] | None = None,
    base: dict[str, Any] | None = None,
) -> Config:
    """The settings of a run. base: a saved config to start from (when resuming) in place of the defaults.

    Raises ConfigError with every problem found.
    """
    values = base if base is not None else SCRATCH_DEFAULTS if model == SCRATCH else PRETRAINED_DEFAULTS
    merged = _merge(values, {"model": model})
    if file is not None:
        merged = _merge(merged, read_yaml(file))
    for setting in settings or []:
        merged = _merge(merged, _parse(setting))
    merged = _merge(merged, options or {})
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_problem(e) for e in error.errors())) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Raises ConfigError naming the file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values or {}, dict):
        raise ConfigError(f"{path}: must hold keys and values")
    return values or {}


def save(config: Config, path: Path) -> None:
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


def _parse(setting: str) -> dict[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting}: must be KEY=VALUE, for example grpo.learning_rate=1e-5")
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {setting}: not a YAML value") from error
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return value


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _problem(error: Any) -> str:
    where = [str(p) for p in error["loc"]]
    name = ".".join(where)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, _keys(Config), 1, 0.5)
        return f"{name}: unknown key" + (f"; did you mean {near[0]}?" if near else "")
    text = error["msg"].removeprefix("Value error, ")
    if not name:
        return text
    return f"{name}: {text}" + (f" (got {error['input']!r})" if error["type"] != "missing" else "")


def _keys(model: type[BaseModel]) -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            keys += [f"{name}.{k}" for k in _keys(kind)]
        else:
            keys.append(name)
    return keys
