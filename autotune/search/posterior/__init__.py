"""What do measurements say of what was not measured, and what is another one worth?"""
