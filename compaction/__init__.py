"""The pure core: values in, values out. No I/O, clock, randomness, logging, settings, HTTP or SQL."""
