// One connection for all tabs of a site: a SharedWorker holds it, tabs say which rooms they want and get what comes.
// A tab that is closed says so. One that does not answer for 60 s is dropped; if it was frozen, it joins again.
importScripts('centrifuge.js')

const scheme = location.protocol === 'https:' ? 'wss' : 'ws'
const client = new Centrifuge(`${scheme}://${location.host}/connection/websocket`, {
  getToken: async () => (await (await fetch('token')).json()).token,
})
const rooms = new Map() // name -> { subscription, ports }
const heard = new Map() // port -> when the tab last answered

function join(name, port) {
  let room = rooms.get(name)
  if (!room) {
    const subscription = client.newSubscription(name, { recoverable: true, positioned: true })
    room = { subscription, ports: new Set() }
    rooms.set(name, room)
    const tell = message => room.ports.forEach(each => each.postMessage({ room: name, ...message }))
    subscription.on('publication', ({ data }) => tell({ data }))
    subscription.on('subscribed', ({ wasRecovering, recovered }) => { room.there = true; tell({ subscribed: true, wasRecovering, recovered }) })
    subscription.subscribe()
  }
  room.ports.add(port)
  if (room.there) port.postMessage({ room: name, subscribed: true, wasRecovering: false, recovered: false })
}

function leave(name, port) {
  const room = rooms.get(name)
  if (!room?.ports.delete(port) || room.ports.size) return
  rooms.delete(name)
  room.subscription.unsubscribe()
  client.removeSubscription(room.subscription)
}

function gone(port) {
  heard.delete(port)
  for (const name of [...rooms.keys()]) leave(name, port)
}

const verbs = {
  join: (port, { room }) => join(room, port),
  leave: (port, { room }) => leave(room, port),
  publish: (port, { room, data }) => client.publish(room, data).catch(error => port.postMessage({ room, error: error.message })),
  here: () => {},
  gone,
}

onconnect = ({ ports: [port] }) => {
  heard.set(port, Date.now())
  port.onmessage = ({ data }) => {
    heard.set(port, Date.now())
    verbs[data.verb]?.(port, data)
  }
}

setInterval(() => {
  for (const [port, at] of heard) {
    if (Date.now() - at > 60_000) gone(port)
    port.postMessage({ verb: heard.has(port) ? 'here' : 'dropped' })
  }
}, 20_000)

client.connect()
