#!/usr/bin/env python3
"""Checkmate's program on HiGHS, as a program that pebbler calls: `peers` says how."""

from peers import on_highs, run

if __name__ == "__main__":
    run("checkmate-highs", on_highs)
