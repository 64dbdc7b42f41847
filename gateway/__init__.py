"""The shell: HTTP in, HTTP out, and the one straight line that asks the core and obeys."""
