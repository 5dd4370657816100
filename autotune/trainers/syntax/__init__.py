"""YAML, JSON, Python and shell text, read without being run and changed byte by byte."""
