"""Guided policy search."""

from jaxtrpo.algorithms.gps.gps import gps

__all__ = ["gps"]
