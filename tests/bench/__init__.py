"""What the gateway costs, measured beside a bare pass-through in one run: `python -m tests.bench` (R16.3)."""
