"""`python -m localllm` is the `localllm` command."""

from localllm.cli.main import main

main()
