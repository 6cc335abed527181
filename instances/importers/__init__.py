"""Instances from elsewhere: torch, ONNX, other people's files."""
