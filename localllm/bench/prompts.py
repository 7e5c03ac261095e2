"""What is asked: texts of ours, or those of a file."""

from __future__ import annotations

import json
from pathlib import Path

from localllm.errors import InvalidRequestError

_CODE = '''def load_orders(path):
    """Reads the orders of a day."""
    orders = []
    with open(path) as file:
        for line in file:
            number, customer, amount = line.split(",")
            orders.append({"number": int(number), "customer": customer, "amount": float(amount)})
    return orders


def total(orders):
    """Adds up the amounts of all orders."""
    result = 0.0
    for order in orders:
        result += order["amount"]
    return result
'''
_TABLE = """| river | length (km) | mouth |
|---|---|---|
| Danube | 2850 | Black Sea |
| Rhine | 1233 | North Sea |
| Elbe | 1094 | North Sea |
| Loire | 1006 | Atlantic Ocean |
| Tagus | 1007 | Atlantic Ocean |
| Oder | 840 | Baltic Sea |
| Po | 652 | Adriatic Sea |
"""

#: What is asked if nothing else is said, by name: a free answer, of which nothing stands in the prompt; a file again with one
#: word changed, of which nearly all does; and rows again in another order, of which the parts do.
PROMPTS = {
    "prose": "Describe a walk through a small town on a market day, from the morning to the evening.",
    "edit": f"Rename the function total to sum_of_orders, and write the whole file again.\n\n```python\n{_CODE}```\n",
    "table": f"Sort this table by length, the longest river first, and write it again.\n\n{_TABLE}",
}


def read_prompts(path: str | Path) -> list[str]:
    """Prompts of a file: a JSON list of texts if its name ends with ".json", else one prompt a line, empty ones left out.

    Args:
        path: the file, in UTF-8.

    Returns:
        list of str, at least one.

    Raises:
        InvalidRequestError: It cannot be read, is no such list, or holds no prompt.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        found = json.loads(text) if Path(path).suffix.lower() == ".json" else [line for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"prompts: {path} cannot be read ({error})") from error
    if not isinstance(found, list) or not all(isinstance(one, str) and one.strip() for one in found):
        raise InvalidRequestError(f"prompts: {path} is no JSON list of texts that are not empty")
    if not found:
        raise InvalidRequestError(f"prompts: {path} holds none")
    return found
