"""`muster size`: how many nodes a demand needs, from what one of each costs.

Owns the shapes that all systems share, and the sum of their plans. Each system's arithmetic is in its `size.py`.
"""
