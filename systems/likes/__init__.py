"""Likes: durable before the answer, exact, ranked, over Redis's protocol. Knows no other system."""
