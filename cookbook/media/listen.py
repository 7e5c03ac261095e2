"""A question about a recording, and what of it is kept for the next one.

python cookbook/media/listen.py MODEL RECORDING

MODEL has to take sound: one whose projector has an audio encoder.
"""

import sys

from localllm import LocalModel


def main(model: str, recording: str, **options) -> list:
    heard = {"type": "audio", "path": recording}
    answers = []
    with LocalModel(model, **options) as local:
        for question in ("What is said or heard here?", "Who might have recorded it?"):
            messages = [{"role": "user", "content": [heard, {"type": "text", "text": question}]}]
            answers.append(local.chat(messages, temperature=0, max_tokens=100))
            print(f"{question}\n{answers[-1].message.content}\n")
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:])
