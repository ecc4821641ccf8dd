"""Likes: durable before the answer, exact, ranked, behind Redis's protocol. Knows no other system."""
