"""Conversations as text: JSON, in which everything comes back as it was, or is refused with its place."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from localllm.engine.config import SamplingParams
from localllm.engine.steering import ControlVector, Lora
from localllm.errors import InvalidRequestError

FORMAT = "localllm-session-1"
# What JSON lacks is an object with one key, which begins so.
_TAG = "localllm:"
_MAX_BITS = 4096
_CLASSES: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in (SamplingParams, Lora, ControlVector)}


def to_text(**parts: Any) -> str:
    """JSON of the parts of a conversation.

    Raises:
        InvalidRequestError: A value has no place in a file; names it by its place.
    """
    try:
        packed = {name: _packed(value, name) for name, value in parts.items()}
        return json.dumps({"format": FORMAT, **packed}, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise InvalidRequestError("session: this is nested too deeply to be saved") from error


def from_text(text: str) -> dict[str, Any]:
    """The parts of a conversation by their names.

    Raises:
        InvalidRequestError: This is not what `to_text` gave; names the place.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"session: must be text, not {type(text).__name__}")
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise InvalidRequestError(f"session: this is no conversation in the format {FORMAT!r}")
        return {name: _unpacked(value, name) for name, value in data.items()}
    except InvalidRequestError:
        raise
    except ValueError as error:
        raise InvalidRequestError(f"session: this is no JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequestError("session: this is nested too deeply for a conversation") from error


def _packed(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, numbers.Integral):
        return _whole_number(int(value), where)
    if isinstance(value, (float, numbers.Real)) and (float(value) == value or math.isnan(value)):
        number = float(value)
        return number if math.isfinite(number) else {f"{_TAG}float": repr(number)}
    if isinstance(value, list):
        return [_packed(each, f"{where}[{at}]") for at, each in enumerate(value)]
    if isinstance(value, tuple):
        return {f"{_TAG}tuple": _packed(list(value), where)}
    if isinstance(value, Mapping):
        return _packed_mapping(value, where)
    name = type(value).__name__
    if _CLASSES.get(name) is type(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {f"{_TAG}{name}": _packed(fields, where)}
    raise InvalidRequestError(f"session: {where} is of type {type(value).__name__}, which cannot be saved")


def _packed_mapping(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)).startswith(_TAG)):
        return {_text(key, where): _packed(each, f"{where}.{key}") for key, each in value.items()}
    pairs = [[_packed(key, where), _packed(each, f"{where}[{key!r}]")] for key, each in value.items()]
    return {f"{_TAG}dict": pairs}


def _whole_number(value: int, where: str) -> int:
    # Python neither writes nor reads numbers of more than 4300 digits.
    if value.bit_length() > _MAX_BITS:
        raise InvalidRequestError(f"session: {where} has {value.bit_length()} bits, of which {_MAX_BITS} can be saved")
    return value


def _text(value: str, where: str) -> str:
    try:
        # And back: of a class of the caller's, such as an enumeration, nothing but the text remains.
        return value.encode().decode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"session: {where} holds half of a surrogate pair, which cannot be saved: {error}") from error


def _unpacked(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_unpacked(each, f"{where}[{at}]") for at, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if len(value) != 1 or not tag.startswith(_TAG):
        return {key: _unpacked(each, f"{where}.{key}") for key, each in value.items()}
    try:
        return _tagged(tag.removeprefix(_TAG), _unpacked(value[tag], where))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"session: {where} is damaged: {error}") from error


def _tagged(tag: str, value: Any) -> Any:
    if tag == "float" and isinstance(value, str):
        return float(value)
    if tag == "tuple" and isinstance(value, list):
        return tuple(value)
    if tag == "dict" and isinstance(value, list):
        return dict(value)
    if tag in _CLASSES and isinstance(value, dict):
        return _CLASSES[tag](**value)
    raise ValueError(f"{_TAG}{tag} of {type(value).__name__} means nothing")
