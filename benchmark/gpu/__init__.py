"""Measurements that need a GPU: the stages of ``pebbler measure``."""
