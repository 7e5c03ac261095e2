"""`python -m localllm` is the `localllm` command."""

from localllm.cli.entry import main

main()
