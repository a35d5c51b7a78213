"""The warm start: supervised fine-tuning on gold SQL with TRL's SFTTrainer."""

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import SFTConfig as TrlSftConfig
from trl import SFTTrainer

from train.config import Config
from train.policy import Policy, encode, encode_completions
from train.shards import Example

IGNORED = -100  # the label that torch's cross entropy leaves out


def warm_start(
    policy: Policy,
    examples: Sequence[Example],
    config: Config,
    *,
    folder: Path,
    callbacks: list[TrainerCallback],
) -> None:
    """Train the policy in place on (prompt, gold SQL) of all stages; the loss is on the SQL alone.

    The ids are made here, by the functions that GRPO and evaluation use, not by the trainer.
    """
    sft, grpo = config.sft, config.grpo
    micro = min(sft.micro_batch_size, sft.batch_size)
    trainer = SFTTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        train_dataset=_dataset(policy, examples),
        args=TrlSftConfig(
            output_dir=str(folder),
            num_train_epochs=sft.epochs,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=sft.batch_size // micro,
            learning_rate=sft.learning_rate,
            lr_scheduler_type="constant_with_warmup" if sft.lr_scheduler == "constant" else sft.lr_scheduler,
            warmup_steps=sft.warmup_share,
            adam_beta2=sft.adam_beta2,
            weight_decay=sft.weight_decay,
            max_grad_norm=1.0,
            max_length=None,
            bf16=grpo.bf16,
            gradient_checkpointing=grpo.gradient_checkpointing,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=config.seed,
            dataloader_pin_memory=False,
        ),
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.train()


def _dataset(policy: Policy, examples: Sequence[Example]) -> Dataset:
    prompts = encode(policy.tokenizer, [e.prompt for e in examples])
    completions = encode_completions(policy.tokenizer, [e.sql for e in examples])
    return Dataset.from_dict(
        {
            "input_ids": [p + c for p, c in zip(prompts, completions, strict=True)],
            "labels": [[IGNORED] * len(p) + c for p, c in zip(prompts, completions, strict=True)],
        }
    )
