"""The edge: browsers, phones and programs in any language, by WebSocket and the Centrifuge client protocol."""
