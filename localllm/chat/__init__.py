"""Messages to a prompt, an answer back to a message."""
