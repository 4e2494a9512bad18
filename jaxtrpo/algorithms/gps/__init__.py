"""Guided policy search (GPS)."""

from jaxtrpo.algorithms.gps.gps import gps

__all__ = ["gps"]
