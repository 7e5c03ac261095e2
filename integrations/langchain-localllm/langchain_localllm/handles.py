"""The LocalModels behind a LangChain object and behind those that are made from it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, SecretStr

from localllm import LocalModel

# The Hub's token, which no text of an object shows. None: localllm looks for the user's own, and knows which addresses it is for.
ApiKey: TypeAlias = Annotated[SecretStr | None, Field(exclude=True, repr=False)]


class Handles:
    """LocalModels by what they were made with.

    An object of LangChain that is configured, copied or bound becomes another object at each call. It takes this along, so what
    one of them has loaded stays loaded for the others, and is let go with the last of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, LocalModel] = {}

    def __eq__(self, other: object) -> bool:
        # What is loaded makes no difference between two objects with the same options.
        return isinstance(other, Handles)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Handles, ()

    def get(self, reference: str, options: Mapping[str, Any], api_key: SecretStr | None) -> LocalModel:
        """The LocalModel of a reference and options, made if there is none yet; nothing is loaded.

        Args:
            reference: str, as LocalModel takes it.
            options: keyword arguments of LocalModel.
            api_key: the Hub's token.

        Raises:
            InvalidRequestError: An option is unknown or out of range.
        """
        token = api_key.get_secret_value() if api_key is not None else None
        key = repr((reference, sorted(options.items()), token))
        with self._lock:
            if key not in self._models:
                self._models[key] = LocalModel(reference, **options, token=token)
            return self._models[key]

    def close(self) -> None:
        """Lets go of everything that was loaded; the next use loads it again."""
        with self._lock:
            models = list(self._models.values())
        for model in models:
            model.close()
