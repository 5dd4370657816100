"""What does an hour of a machine cost, where, as of when, and in which sizes is it sold?"""
