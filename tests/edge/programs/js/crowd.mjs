// Many connections of an unchanged `centrifuge` from npm: `node crowd.mjs URL TOKEN COUNT`. Prints `ready` once all are connected, then
// one line of JSON for each connection that ends: its code, and the milliseconds since the first end.
import { Centrifuge } from 'centrifuge'
import WebSocket from 'ws'

const [url, token, count] = process.argv.slice(2)
let first = null
const clients = Array.from({ length: Number(count) }, () => {
  const client = new Centrifuge(url, { token, websocket: WebSocket })
  client.on('connecting', ({ code }) => {
    if (code === 0) return // the first one of all
    const now = performance.now()
    first ??= now
    console.log(JSON.stringify({ code, ms: now - first }))
    client.disconnect()
  })
  client.connect()
  return client
})
await Promise.all(clients.map(client => client.ready()))
console.log('ready')
process.stdin.resume()
process.stdin.on('end', () => process.exit(0))
