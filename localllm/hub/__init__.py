"""Where models come from: references, GGUF headers, the catalog. Needs no native library."""
