"""An agent whose tool gives back a picture, at which it looks before it answers.

python cookbook/media/image_tool.py [MODEL]
"""

import base64
import io
import sys
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_localllm import ChatLocalLLM
from PIL import Image, ImageDraw


@tool
def take_picture(room: Literal["garden", "kitchen"]) -> list:
    """A picture of a room of the house, taken now.

    Args:
        room: Name of the room.
    """
    picture = Image.new("RGB", (128, 96), "darkgreen" if room == "garden" else "beige")
    ImageDraw.Draw(picture).ellipse((44, 30, 84, 70), fill="red")
    data = io.BytesIO()
    picture.save(data, "PNG")
    return [{"type": "image", "base64": base64.b64encode(data.getvalue()).decode(), "mime_type": "image/png"}]


@wrap_model_call
def look_first(request, handler):
    """As long as nothing was looked at, the model must look; then it must answer."""
    looked = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request.override(tool_choice="none" if looked else "any"))


def main(model: str = "qwen2.5-vl-3b", **options) -> list:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=60, model_options=options)
    agent = create_agent(llm, tools=[take_picture], middleware=[look_first])
    state = agent.invoke({"messages": [("user", "What lies in the garden?")]})
    for message in state["messages"]:
        print(f"{message.type}: {message.text or [call['name'] for call in getattr(message, 'tool_calls', [])]}")
    return state["messages"]


if __name__ == "__main__":
    main(*sys.argv[1:])
