"""A simulated provider with a real context window (SPEC 17): strict, deterministic, and faulty on demand."""

from gateway.simulator.app import create_simulator
from gateway.simulator.server import ThreadedServer
from gateway.simulator.settings import SimulatorSettings

__all__ = ["SimulatorSettings", "ThreadedServer", "create_simulator"]
