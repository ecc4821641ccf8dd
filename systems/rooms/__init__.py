"""The room plane's roles: proxy, broker, router, gateway."""
