"""Defines tools from schemas, functions and verl's classes, and reads and runs a model's calls."""
