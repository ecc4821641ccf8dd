"""The roles of rooms: proxy, broker, router, gateway."""
