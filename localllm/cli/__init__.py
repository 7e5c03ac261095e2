"""The `localllm` command."""
