"""A whole federation in one process: the real machines of server and silos, without network, certificates on disk or clocks."""

from fedrep_simulator.api import simulate
from fedrep_simulator.results import SimulationResult

__all__ = ["SimulationResult", "simulate"]
