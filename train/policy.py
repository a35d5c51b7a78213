"""The policy: a pretrained model, or a small Llama from scratch with a tokenizer learnt from the shards.

This module also decides what the model reads: SFT, GRPO and evaluation all take prompts from `render_prompt`
and token ids from `encode`, since a prompt that differs by one space lowers accuracy unseen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)

from train.config import PolicyConfig

END, PAD = "<|end|>", "<|pad|>"
# A word with the space or underscore before it, a digit, or a run of other signs: the parts of names and
# numbers can then be copied one by one from the prompt.
PIECES = r"[ _]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s"


@dataclass
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def save(self, path: Path) -> None:
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)


def learn_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text can be written and read back exactly. Same texts, same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def new_policy(texts: Iterable[str], config: PolicyConfig, *, max_length: int, seed: int) -> Policy:
    """A Llama-style policy with random weights and tied embeddings."""
    tokenizer = learn_tokenizer(texts, config.vocab_size)
    set_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=8 * config.hidden_size // 3,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=max_length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    return Policy(model, tokenizer)


def load_policy(name: str | Path, *, bf16: bool = False) -> Policy:
    """A saved run's best/ or checkpoint, or a model by name. Raises OSError where there is none."""
    tokenizer = AutoTokenizer.from_pretrained(str(name), padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(str(name), dtype=torch.bfloat16 if bf16 else torch.float32)
    return Policy(model, tokenizer)


def as_input(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str | list[dict[str, str]]:
    """The prompt as TRL takes it: text, or one user message where the model has a chat template."""
    return [{"role": "user", "content": prompt}] if tokenizer.chat_template else prompt


def encode(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts, the very ids that TRL's GRPOTrainer generates from."""
    if not prompts:
        return []
    if not tokenizer.chat_template:
        return tokenizer(text=list(prompts))["input_ids"]
    conversations: Any = [as_input(tokenizer, p) for p in prompts]
    encoded = tokenizer.apply_chat_template(
        conversations, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return encoded["input_ids"]


def encode_completions(tokenizer: PreTrainedTokenizerBase, sqls: Sequence[str]) -> list[list[int]]:
    """Token ids of gold SQL as completions: with the end token, without anything before."""
    if not sqls:
        return []
    texts = [f"```sql\n{s}\n```" for s in sqls] if tokenizer.chat_template else [f" {s}" for s in sqls]
    return [
        [*ids, tokenizer.eos_token_id] for ids in tokenizer(text=texts, add_special_tokens=False)["input_ids"]
    ]
