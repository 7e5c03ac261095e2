"""What this process has loaded, for how long it stays, and what makes way when memory gets scarce."""
