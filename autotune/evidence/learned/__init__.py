"""What do a user's past runs say of later ones? What is kept of them, and its effects."""
