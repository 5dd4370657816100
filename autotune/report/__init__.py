"""Answers for people and programs: JSON payloads, and text, Markdown and CSV made from them.

Every format is a function of the same payload, so a recorded `recommendation.json` prints like the
run that wrote it, and no two formats can disagree.
"""
