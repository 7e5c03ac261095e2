"""Pictures, sound and video: loading them, what they are called, and what the encoder makes of them."""
