// uWebSockets as Bun has it, for `muster bench edge`: the server's own publish and subscribe, one topic for each channel.
// `bun edge_bun.js PORT`. The first message of a client is `subscribe CHANNEL` or `publish CHANNEL`; a publisher's further ones
// go to all subscribers of its channel.
const server = Bun.serve({
  port: Number(process.argv[2]),
  hostname: '127.0.0.1',
  fetch: (request, server) => (server.upgrade(request, { data: {} }) ? undefined : new Response('WebSocket only', { status: 426 })),
  websocket: {
    perMessageDeflate: false,
    backpressureLimit: 64 << 20,
    message(socket, message) {
      if (socket.data.channel !== undefined) return server.publish(socket.data.channel, message)
      const [word, channel] = String(message).split(' ')
      socket.data.channel = channel
      if (word === 'subscribe') socket.subscribe(channel)
      socket.send('ready')
    },
  },
})
