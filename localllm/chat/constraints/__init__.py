"""What an answer must look like, as a grammar in llama.cpp's GBNF."""
