"""What has been computed before: which prefix is where."""
