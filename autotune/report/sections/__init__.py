"""The parts of a whole report, a file for each question that an answer has to meet.

A section says what is told; how it looks is decided in `layout/` and `page/`.
"""
