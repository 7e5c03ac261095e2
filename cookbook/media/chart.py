"""Numbers read off a chart, as data that fit a schema.

python cookbook/media/chart.py [MODEL]
"""

import json
import sys

from PIL import Image, ImageDraw

from localllm import LocalModel

SALES = {"Mon": 30, "Tue": 80, "Wed": 55}
SCHEMA = {
    "type": "object",
    "properties": {
        "best_day": {"enum": list(SALES)},
        "bars": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["best_day", "bars"],
}


def chart(values: dict) -> Image.Image:
    """Bars with their names below."""
    picture = Image.new("RGB", (60 * len(values) + 20, 140), "white")
    draw = ImageDraw.Draw(picture)
    for at, (name, value) in enumerate(values.items()):
        draw.rectangle((20 + 60 * at, 110 - value, 60 + 60 * at, 110), fill="steelblue")
        draw.text((28 + 60 * at, 116), name, fill="black")
    return picture


def main(model: str = "qwen2.5-vl-3b", **options) -> dict:
    question = "On which day was most sold, and how many bars are there?"
    content = [{"type": "image", "image": chart(SALES)}, {"type": "text", "text": question}]
    with LocalModel(model, **options) as local:
        answer = local.chat([{"role": "user", "content": content}], json_schema=SCHEMA, temperature=0, max_tokens=100)
    found = json.loads(answer.message.content)
    print(found)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
