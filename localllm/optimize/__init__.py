"""A version of a model that is faster on this machine: what it would be, and writing it.

llama.cpp repacks only some tensor types for the CPU at hand, so a model of the same size can be much faster in another.
"""

from __future__ import annotations

from localllm.files import require_new as require_new
from localllm.optimize.names import register as register
from localllm.optimize.planning import OptimizePlan as OptimizePlan
from localllm.optimize.planning import mixture_names as mixture_names
from localllm.optimize.planning import plan_optimize as plan_optimize
from localllm.optimize.writing import OptimizeProgress as OptimizeProgress
from localllm.optimize.writing import optimize as optimize
