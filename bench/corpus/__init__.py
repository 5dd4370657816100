"""A folder of other people's files through the product, held against an independent reading."""
