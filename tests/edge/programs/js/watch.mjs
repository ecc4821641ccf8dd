// Watches rooms by an unchanged `centrifuge` from npm: `node watch.mjs URL TOKEN ROOM...`. Prints each event of a subscription and of
// the connection as one line of JSON, as the SDK's application gets them.
import { Centrifuge } from 'centrifuge'
import WebSocket from 'ws'

// Of data that is an object its `n` stands for all of it.
const [url, token, ...rooms] = process.argv.slice(2)
const say = (event, more = {}) => console.log(JSON.stringify({ event, ...more }))
const client = new Centrifuge(url, { token, websocket: WebSocket, minReconnectDelay: 50, maxReconnectDelay: 500 })
for (const event of ['connected', 'connecting', 'disconnected']) client.on(event, ({ code, reason }) => say(event, { code, reason }))
for (const room of rooms) {
  const subscription = client.newSubscription(room, { recoverable: true, positioned: true, joinLeave: true })
  subscription.on('subscribing', ({ code, reason }) => say('subscribing', { room, code, reason }))
  subscription.on('subscribed', ({ wasRecovering, recovered }) => say('subscribed', { room, wasRecovering, recovered }))
  subscription.on('unsubscribed', ({ code, reason }) => say('unsubscribed', { room, code, reason }))
  for (const event of ['join', 'leave']) subscription.on(event, ({ info }) => say(event, { room, user: info.user }))
  subscription.on('publication', ({ data, offset }) => say('publication', { room, data: data.n ?? data, offset }))
  subscription.subscribe()
}
// Events of rooms that the server subscribes to.
client.on('subscribed', ({ channel, wasRecovering, recovered }) => say('subscribed', { room: channel, wasRecovering, recovered }))
client.on('unsubscribed', ({ channel }) => say('unsubscribed', { room: channel }))
client.on('publication', ({ channel, data, offset }) => say('publication', { room: channel, data: data.n ?? data, offset }))
client.connect()
process.stdin.resume()
process.stdin.on('end', () => process.exit(0))
