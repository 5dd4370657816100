"""Which candidates are valid? Search-space files, the rules, and every valid combination."""
