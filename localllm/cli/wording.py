"""Messages for people who type options: those of the library name arguments and fields as programs write them."""

from __future__ import annotations

import functools
import re

from typer.core import TyperGroup
from typer.main import get_command

# Fields that are called otherwise than the option that they come from.
_FIELDS = {
    "type_k": "--cache-type",
    "type_v": "--cache-type",
    "bytes_per_second": "--rate-limit",
    "n_threads": "--threads",
    "loras": "--lora",
    "control_vectors": "--control-vector",
    "overwrite": "--force",
    "enable_thinking": "--think",
    "kind": "--speculation",
    "n_max": "--draft-tokens",
    "n_rounds": "--rounds",
    "n_tokens": "--tokens",
}
# What the command line has no option for, or nobody can type.
_UNSAYABLE = re.compile(
    r"; check_memory=False loads it all the same|, or stretch its positions \(rope_freq_base, rope_freq_scale\)"
    r"|, or None|(?<=not one of )None, "
)


def in_options(text: str) -> str:
    """A message of the library with options in place of the names that programs use.

    Args:
        text: str; the argument at fault begins it, as InvalidRequestError promises.
    """
    options = _options()
    text = _UNSAYABLE.sub("", text)
    begins = re.match(r"(\w+)(?=:)", text)
    if begins and begins[1] in options:
        text = options[begins[1]] + text[begins.end() :]

    def replaced(found: re.Match[str]) -> str:
        option = options.get(found[1])
        if option is None or not (found[2] or "_" in found[1]):
            return found[0]
        return option if found[2] in ("", "=True") else f"{option} {found[2][1:]}"

    return re.sub(r"(?<![\w/.-])([a-z]\w*)((?:=[\w'.-]*\w'?)?)", replaced, text)


@functools.cache
def _options() -> dict[str, str]:
    """The options of all commands, by the names of the arguments that they become."""
    from localllm.cli.main import app

    found = dict(_FIELDS)
    commands = get_command(app)
    assert isinstance(commands, TyperGroup)
    for command in commands.commands.values():
        for parameter in command.params:
            long = next((name for name in parameter.opts if name.startswith("--")), None)
            if long is not None:
                found.setdefault(parameter.name, long)
    return found
