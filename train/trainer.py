"""TRL's GRPOTrainer with staged draws, a ledger of prompts, and no work for groups that teach nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import GRPOConfig as TrlGrpoConfig
from trl import GRPOTrainer

from train.config import Config
from train.ledger import Ledger
from train.policy import Policy, as_input
from train.rewards import RewardFunction
from train.sampler import CurriculumSampler, StagedDraws
from train.shards import Example

SAME = 1e-6  # rewards nearer than this are equal: such a group has no gradient
TOKEN_LOSSES = (
    "dapo",
    "cispo",
    "vespo",
)  # normalized by the tokens of the whole batch, dropped rows included


class CurriculumTrainer(GRPOTrainer):
    """draws gives positions in `examples`; the ledger counts what became of each.

    Logs beside TRL's metrics, as shares of the groups of a step (computed before any normalization, so they
    hold under every scale_rewards): zero_std/{execution,syntax,structure,total}, groups/all_right,
    groups/all_wrong, undecided (share of completions), execution/stage_S and share/stage_S.
    """

    def __init__(
        self,
        policy: Policy,
        examples: Sequence[Example],
        config: Config,
        *,
        draws: StagedDraws,
        rewards: list[RewardFunction],
        ledger: Ledger,
        max_completion_length: int,
        folder: Path,
        callbacks: list[TrainerCallback],
    ):
        self.draws, self.examples, self.ledger = draws, examples, ledger
        self._silent = torch.zeros(0, dtype=torch.bool)
        super().__init__(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=list(rewards),
            args=_arguments(config, max_completion_length, folder),
            train_dataset=_dataset(policy, examples),
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: TRL's would tell of neither the shards nor the evaluation."""

    def _get_train_sampler(self, dataset: Dataset | None = None) -> CurriculumSampler:
        """One pass over the whole run: see train/sampler.py."""
        return CurriculumSampler(
            self.draws,
            windows=-(-self.args.max_steps // self.num_iterations),
            mini_repeat_count=self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            steps_per_window=self.num_iterations,
        )

    def _calculate_rewards(self, inputs: Any, *args: Any) -> torch.Tensor:
        """Rewards of all processes, shape (prompts * generations, components); also fills the ledger."""
        rewards = super()._calculate_rewards(inputs, *args)
        rows = gather_object([example["row"] for example in inputs])
        grouped = rewards.view(-1, self.num_generations, rewards.shape[1])
        total = (grouped * self.reward_weights.to(rewards.device)).nansum(dim=2)
        total[grouped.isnan().all(dim=2)] = torch.nan
        silent = _spread(total) < SAME
        local = slice(
            self.accelerator.process_index * len(inputs), (self.accelerator.process_index + 1) * len(inputs)
        )
        self._silent = silent.repeat_interleave(self.num_generations)[local]
        self._record(rows[:: self.num_generations], grouped, total, silent)
        return rewards

    def _record(
        self, rows: list[int], grouped: torch.Tensor, total: torch.Tensor, silent: torch.Tensor
    ) -> None:
        execution = grouped[:, :, 0]
        for row, rewards, right in zip(rows, total.tolist(), execution.tolist(), strict=True):
            self.ledger.record(row, rewards, right)
        log = self._metrics["train"]
        for i, name in enumerate(self.reward_func_names):
            log[f"zero_std/{name}"].append((_spread(grouped[:, :, i]) < SAME).float().mean().item())
        log["zero_std/total"].append(silent.float().mean().item())
        means = execution.nanmean(dim=1)
        log["groups/all_right"].append((means == 1).float().mean().item())
        log["groups/all_wrong"].append((means == 0).float().mean().item())
        log["undecided"].append(execution.isnan().float().mean().item())
        stages = torch.tensor([self.examples[row].stage for row in rows], device=means.device)
        for stage in self.draws.stages:
            log[f"share/stage_{stage}"].append((stages == stage).float().mean().item())
            log[f"execution/stage_{stage}"].append(means[stages == stage].nanmean().item())

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """As TRL's, without the completions whose advantage is zero: their gradient is, too.

        Only under losses normalized by the token count of the whole batch, which stays what it was, and
        without KL or entropy terms (those have gradients of their own); so the update is the same, sooner.
        """
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.beta or self._entropy_bonus_enabled or self.loss_type not in TOKEN_LOSSES:
            return output
        if not self.model.training or not self._silent.any():
            return output
        parts = self.args.steps_per_generation
        heard = (~self._silent).nonzero().flatten()
        filler = self._silent.nonzero().flatten()
        # every micro-batch needs the same number of rows, and at least one
        short = max(parts - len(heard), -len(heard) % parts)
        keep = torch.cat([heard, filler[:short]])
        for name, value in output.items():
            if isinstance(value, torch.Tensor) and value.ndim > 0:
                output[name] = value[keep.to(value.device)]
        return _trim(output)


def _spread(values: torch.Tensor) -> torch.Tensor:
    """Largest minus smallest along the last dimension; NaN does not count, and all NaN have none."""
    high = values.nan_to_num(nan=-torch.inf).amax(dim=-1)
    low = values.nan_to_num(nan=torch.inf).amin(dim=-1)
    return (high - low).clamp(min=0)


def _trim(output: dict[str, Any]) -> dict[str, Any]:
    """Cut the columns that are padding in every row: prompts are padded on the left, completions right."""
    start = int(output["prompt_mask"].any(dim=0).float().argmax())
    end = int(output["completion_mask"].sum(dim=1).max())
    width = output["completion_mask"].shape[1]
    for name, value in output.items():
        if name in ("prompt_ids", "prompt_mask"):
            output[name] = value[:, start:]
        elif isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[1] == width:
            output[name] = value[:, :end]
    return output


def _dataset(policy: Policy, examples: Sequence[Example]) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [as_input(policy.tokenizer, e.prompt) for e in examples],
            "row": list(range(len(examples))),
            "database": [e.database for e in examples],
            "gold_sqls": [list(e.gold_sqls) for e in examples],
            "dialect": [e.dialect for e in examples],
        }
    )


def _arguments(config: Config, max_completion_length: int, folder: Path) -> TrlGrpoConfig:
    grpo, rewards = config.grpo, config.rewards
    batch = grpo.prompts * grpo.generations
    micro = min(grpo.micro_batch_size, batch)
    return TrlGrpoConfig(
        output_dir=str(folder),
        max_steps=grpo.max_steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // micro,
        num_generations=grpo.generations,
        num_iterations=grpo.iterations,
        max_completion_length=max_completion_length,
        temperature=grpo.temperature,
        learning_rate=grpo.learning_rate,
        adam_beta2=grpo.adam_beta2,
        lr_scheduler_type=grpo.lr_scheduler if not grpo.warmup_steps else _with_warmup(grpo.lr_scheduler),
        warmup_steps=grpo.warmup_steps,
        max_grad_norm=grpo.max_grad_norm,
        loss_type=grpo.loss_type,
        scale_rewards=grpo.scale_rewards,
        beta=grpo.beta,
        epsilon=grpo.epsilon,
        epsilon_high=grpo.epsilon_high,
        entropy_coef=grpo.entropy_coef,
        mask_truncated_completions=grpo.mask_truncated,
        reward_weights=[rewards.execution, rewards.syntax, rewards.structure],
        bf16=grpo.bf16,
        gradient_checkpointing=grpo.gradient_checkpointing,
        eval_strategy="no",
        save_strategy="steps",
        save_steps=config.evaluation.every,
        save_total_limit=config.evaluation.keep_checkpoints,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        seed=config.seed,
        dataloader_pin_memory=False,
    )


def _with_warmup(scheduler: str) -> str:
    return "constant_with_warmup" if scheduler == "constant" else scheduler
