"""Pictures described in a conversation: each is encoded once, however often it is talked about.

python cookbook/media/describe.py MODEL PICTURE [PICTURE ...]
"""

import sys

from localllm import ChatSession, LocalModel


def main(model: str, *pictures: str, **options) -> list:
    answers = []
    with LocalModel(model, **options) as local:
        session = ChatSession(local, temperature=0, max_tokens=100)
        for picture in pictures:
            question = {"type": "text", "text": "What is to be seen here?"}
            answers.append(session.ask({"role": "user", "content": [{"type": "image", "path": picture}, question]}))
        answers.append(session.ask("What do all of them have in common?"))
    for answer in answers:
        usage = answer.usage
        print(answer.message.content)
        print(f"  {usage.media_encoded} encoded, {usage.media_cached} kept; {usage.cached_tokens} of {usage.prompt_tokens} known")
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:])
