"""Guessing what comes next, so that the model only has to check: several tokens for the price of one batch."""
