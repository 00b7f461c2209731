"""Fixtures shared by the tests: tiny random models for arithmetic, and the real SmolLM2 for meaning."""
