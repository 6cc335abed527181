#!/usr/bin/env python3
"""Checkmate's program on CP-SAT, as a program that pebbler calls: `peers` says how."""

from peers import on_cp_sat, run

if __name__ == "__main__":
    run("checkmate-cp-sat", on_cp_sat)
