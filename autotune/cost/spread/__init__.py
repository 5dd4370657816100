"""How far may a prediction be off, by which cause, and what would narrow it?"""
