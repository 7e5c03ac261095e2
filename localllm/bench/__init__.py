"""How fast a model reads and answers on this machine, and what guessing ahead brings it.

from localllm.bench import compare

for result in compare("smollm2", {"ngram-map-k": "ngram-map-k"}).results:
    print(result.name, result.tokens_per_second, result.ratio)
"""

from __future__ import annotations

from localllm.bench.compare import Comparison as Comparison
from localllm.bench.compare import compare as compare
from localllm.bench.figures import PromptResult as PromptResult
from localllm.bench.figures import Result as Result
from localllm.bench.picture import draw as draw
from localllm.bench.prompts import PROMPTS as PROMPTS
from localllm.bench.prompts import read_prompts as read_prompts
