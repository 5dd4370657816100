"""The answer of `tune` as one HTML page that needs nothing else: questions, tables and drawings."""
