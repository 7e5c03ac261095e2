"""Text to speech: Qwen3-TTS, Pocket TTS and Soprano."""
