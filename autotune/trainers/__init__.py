"""How does a trainer spell it? Its files read, changed where they stand, or written from nothing.

One module a trainer (a folder where it is long), `syntax` for the languages they are written in,
`launch` for what starts them; what holds for all of them stands here.
"""
