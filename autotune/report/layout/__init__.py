"""What a report is made of, and the same blocks as text, Markdown and CSV.

Nothing here knows an answer; the page has drawings of its own in `page/`.
"""
