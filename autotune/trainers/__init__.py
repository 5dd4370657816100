"""How does a trainer spell it? Its files read, changed where they stand, or written from nothing.

One folder a trainer, `syntax` for the languages they are written in, `launch` for what starts them;
what holds for all of them stands here.
"""
