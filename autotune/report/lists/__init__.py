"""Answers that are tables: the catalogue, runs, a data set, the record and its fit.

What is measured and fitted is made in `evidence/`; here it is only shown.
"""
