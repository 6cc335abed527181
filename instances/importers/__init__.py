"""Instances from models: torch and ONNX."""
