"""Train an NL2SQL policy with GRPO on curriculum shards."""
