// Cases of an unchanged `centrifuge` from npm against one server: `node cases.mjs URL json|protobuf GIVEN CASE...`, or `names`.
// Prints one line of JSON for each case: its name, and the error if it failed. GIVEN: `Given` of `sdks.py`, as JSON.
import assert from 'node:assert/strict'
import { Centrifuge as Json } from 'centrifuge'
import { Centrifuge as Protobuf } from 'centrifuge/build/protobuf'
import WebSocket from 'ws'

const [url, encoding, given = '{}', ...wanted] = process.argv.slice(2)
const { token, other: otherToken, reader, wrong, expired, small, enters, hall } = JSON.parse(given)
const PATIENT_MS = 60_000
const binary = encoding === 'protobuf'
const pack = value => (binary ? new TextEncoder().encode(JSON.stringify(value)) : value)
const unpack = data => (binary ? JSON.parse(new TextDecoder().decode(data)) : data)
const open = new Set()

function connect(more = {}) {
  const target = binary ? `${url}?cf_protocol=protobuf` : url
  const client = new (binary ? Protobuf : Json)(target, { token, websocket: WebSocket, minReconnectDelay: 20, maxReconnectDelay: 200, ...more })
  open.add(client)
  client.connect()
  return client
}

// Each line of a watch is `[event, context]`, in the order in which the SDK told them.
function watch(subscription) {
  const seen = []
  let wake = () => {}
  for (const event of ['subscribing', 'subscribed', 'unsubscribed', 'publication', 'error', 'join', 'leave']) {
    subscription.on(event, context => { seen.push([event, context]); wake() })
  }
  seen.until = async condition => {
    while (!condition(seen)) await new Promise(resolve => { wake = resolve })
    return seen
  }
  seen.data = () => seen.filter(([event]) => event === 'publication').map(([, context]) => unpack(context.data))
  return seen
}

function once(emitter, event) { return new Promise(resolve => emitter.once(event, resolve)) }
async function failure(promise) { try { await promise } catch (error) { return error.code } return 'no error' }
async function call(client, method, data) { return unpack((await client.rpc(method, pack(data))).data) }
// Subscribed: the SDK's `ready` says so.
async function joined(client, room, options = {}) {
  const subscription = client.newSubscription(room, options)
  const seen = watch(subscription)
  subscription.subscribe()
  await subscription.ready()
  return [subscription, seen]
}

// As `docs/edge.md` has it.
const euros = { filter: { equal: { pair: ['EUR', 'USD'], kind: 'trade' } } }

// As `docs/requests.md` has it.
function respond(client, room, handler) {
  const responder = crypto.randomUUID()
  const requests = client.newSubscription(`${room}/requests`)
  requests.on('publication', async ({ data }) => {
    if (!String(data.reply).startsWith('replies:')) return // whatever a request says, replies go nowhere else
    if (data.ask) return client.publish(data.reply, { id: data.ask, responder })
    if (data.to !== responder) return
    const reply = { id: data.id, responder }
    try {
      reply.data = await handler(JSON.parse(data.data))
    } catch {
      reply.error = 'failed'
    }
    await client.publish(data.reply, reply)
  })
  requests.subscribe()
  return requests
}

// A client whose data are JSON in both encodings.
function plain(client) {
  return {
    publish: (room, data) => client.publish(room, pack(data)),
    newSubscription(room) {
      const subscription = client.newSubscription(room)
      return {
        on: (event, heard) => subscription.on(event, context => heard({ data: unpack(context.data) })),
        subscribe: () => subscription.subscribe(),
        ready: () => subscription.ready(),
        unsubscribe: () => subscription.unsubscribe(),
      }
    },
  }
}

const cases = {
  async connects(room) {
    const client = connect()
    const context = await once(client, 'connected')
    assert.ok(context.client)
    client.disconnect()
    assert.equal(client.state, 'disconnected')
  },
  async publishes_and_receives_in_order(room) {
    const client = connect()
    const [, seen] = await joined(client, room)
    for (let n = 1; n <= 20; n++) await client.publish(room, pack({ n }))
    await seen.until(() => seen.data().length === 20)
    assert.deepEqual(seen.data().map(data => data.n), Array.from({ length: 20 }, (_, at) => at + 1))
  },
  async names_the_publisher(room) {
    const client = connect()
    const [, seen] = await joined(client, room)
    await client.publish(room, pack(1))
    await seen.until(() => seen.data().length === 1)
    assert.ok(seen.find(([event]) => event === 'publication')[1].info.client)
  },
  async sends_a_batch_of_commands(room) {
    const client = connect()
    const [, seen] = await joined(client, room)
    client.startBatching()
    const published = [1, 2, 3].map(n => client.publish(room, pack(n)))
    client.stopBatching()
    await Promise.all(published)
    await seen.until(() => seen.data().length === 3)
    assert.deepEqual(seen.data(), [1, 2, 3])
  },
  async tells_history(room) {
    const client = connect()
    await joined(client, room)
    for (let n = 1; n <= 5; n++) await client.publish(room, pack(n))
    const all = await client.history(room, { limit: 100 })
    assert.deepEqual(all.publications.map(one => unpack(one.data)), [1, 2, 3, 4, 5])
    const top = await client.history(room, { limit: 0 })
    assert.deepEqual([top.publications.length, top.offset, top.epoch], [0, all.offset, all.epoch])
    const since = { offset: all.publications[1].offset, epoch: all.epoch }
    const after = await client.history(room, { limit: 2, since })
    assert.deepEqual(after.publications.map(one => unpack(one.data)), [3, 4])
    const back = await client.history(room, { limit: 2, reverse: true })
    assert.deepEqual(back.publications.map(one => unpack(one.data)), [5, 4])
    const before = await client.history(room, { limit: 9, reverse: true, since: { offset: all.publications[2].offset, epoch: all.epoch } })
    assert.deepEqual(before.publications.map(one => unpack(one.data)), [2, 1])
  },
  async counts_who_is_present(room) {
    const [one, two] = [connect(), connect({ token: otherToken })]
    const [first] = await joined(one, room)
    const [second] = await joined(two, room)
    const clients = async () => Object.keys((await one.presence(room)).clients).length
    const until = async count => {
      while (await clients() !== count || (await one.presenceStats(room)).numClients !== count) await new Promise(next => setTimeout(next, 100))
    }
    await until(2)
    first.unsubscribe()
    second.unsubscribe()
    await until(0)
  },
  async unsubscribes_and_hears_no_more(room) {
    const client = connect()
    const [subscription, seen] = await joined(client, room)
    subscription.unsubscribe()
    await client.publish(room, pack(1))
    assert.deepEqual(seen.data(), [])
    assert.equal(seen.at(-1)[0], 'unsubscribed')
    assert.equal(seen.at(-1)[1].code, 0)
  },
  async stays_subscribed_after_leaving_and_coming_in_a_hurry(room) {
    const client = connect()
    await client.ready()
    const subscription = client.newSubscription(room)
    const seen = watch(subscription)
    for (let n = 0; n < 10; n++) { subscription.subscribe(); subscription.unsubscribe() }
    subscription.subscribe()
    await subscription.ready()
    await client.publish(room, pack(7))
    await seen.until(() => seen.data().length === 1)
    assert.deepEqual(seen.data(), [7])
  },
  async recovers_what_it_missed(room) {
    const [client, other] = [connect(), connect()]
    const [, seen] = await joined(client, room, { recoverable: true, positioned: true })
    await other.publish(room, pack(1))
    await seen.until(() => seen.data().length === 1)
    client.disconnect()
    for (const n of [2, 3, 4]) await other.publish(room, pack(n))
    client.connect()
    await seen.until(() => seen.data().length === 4)
    assert.deepEqual(seen.data(), [1, 2, 3, 4])
    const back = seen.filter(([event]) => event === 'subscribed').at(-1)[1]
    assert.deepEqual([back.wasRecovering, back.recovered], [true, true])
  },
  async says_when_it_cannot_recover(room) {
    room = `${small}:${room.split(':')[1]}`
    const [client, other] = [connect(), connect()]
    const [, seen] = await joined(client, room, { recoverable: true, positioned: true })
    await other.publish(room, pack(0))
    await seen.until(() => seen.data().length === 1)
    client.disconnect()
    for (let n = 1; n <= 300; n++) await other.publish(room, pack(n))
    client.connect()
    await seen.until(() => seen.filter(([event]) => event === 'subscribed').length === 2)
    const back = seen.filter(([event]) => event === 'subscribed').at(-1)[1]
    assert.deepEqual([back.wasRecovering, back.recovered], [true, false])
    await other.publish(room, pack('live'))
    await seen.until(() => seen.data().at(-1) === 'live')
  },
  async goes_on_from_the_position_of_the_application(room) {
    const client = connect()
    for (const n of [1, 2, 3]) await client.publish(room, pack(n))
    await joined(client, room)
    const top = await client.history(room, { limit: 100 })
    client.removeSubscription(client.getSubscription(room))
    const since = { offset: top.publications[0].offset, epoch: top.epoch }
    const [, seen] = await joined(client, room, { since })
    await seen.until(() => seen.data().length === 2)
    assert.deepEqual(seen.data(), [2, 3])
  },
  async starts_at_the_head_with_a_position_ahead_of_it(room) {
    const client = connect()
    await client.publish(room, pack(1))
    await joined(client, room)
    const top = await client.history(room, { limit: 1 })
    client.removeSubscription(client.getSubscription(room))
    const since = { offset: top.offset + 50, epoch: top.epoch }
    const [, seen] = await joined(client, room, { since })
    const now = seen.filter(([event]) => event === 'subscribed').at(-1)[1]
    assert.deepEqual([now.wasRecovering, now.recovered], [true, false])
    for (const n of [2, 3]) await client.publish(room, pack(n))
    await seen.until(() => seen.data().length === 2)
    assert.deepEqual(seen.data(), [2, 3])
  },
  async asks_for_the_state_when_it_cannot_recover(room) {
    room = `${small}:${room.split(':')[1]}`
    const [client, other] = [connect(), connect()]
    let asked = 0
    const getState = async () => {
      asked += 1
      const top = await other.history(room, { limit: 0 })
      return { offset: top.offset, epoch: top.epoch }
    }
    await other.publish(room, pack(0))
    const [, seen] = await joined(client, room, { getState })
    assert.equal(asked, 1)
    client.disconnect()
    for (let n = 1; n <= 300; n++) await other.publish(room, pack(n))
    client.connect()
    await seen.until(() => seen.filter(([event]) => event === 'subscribed').length === 2)
    assert.equal(asked, 2)
  },
  async gets_an_error_for_an_unknown_method() {
    const client = connect()
    assert.ok([104, 108].includes(await failure(client.rpc('no.such.method', pack({})))))
  },
  async sends_to_all_tabs_of_a_user_and_hears_of_each(room) {
    const [one, tab, other] = [connect(), connect({ token: otherToken }), connect({ token: otherToken })]
    const heard = new Map([tab, other].map(client => [client, []]))
    for (const [client, messages] of heard) client.on('message', context => messages.push(unpack(context.data)))
    await Promise.all([one, tab, other].map(client => client.ready()))
    const outcomes = async (n) => (await call(one, 'muster.send', { user: '8', data: { n } })).devices.map(device => device.outcome)
    let n = 0
    while (String(await outcomes(++n)) !== 'delivered,delivered') await new Promise(next => setTimeout(next, 50))
    for (const messages of heard.values()) {
      assert.deepEqual(messages.at(-1), { muster: 'direct', user: '7', data: { n } })
      assert.equal(new Set(messages.map(message => message.data.n)).size, messages.length)
    }
    const gone = await call(one, 'muster.send', { user: 4711, data: 1, expires: 0.5 })
    assert.notEqual(gone.devices[0].outcome, 'delivered')
    assert.equal(await failure(call(one, 'muster.send', { user: 'no number', data: 1 })), 107)
    assert.equal(await failure(call(one, 'muster.send', { user: 8, data: 'x'.repeat(1_000) })), 107)
    assert.equal(await failure(call(connect({ token: reader }), 'muster.send', { user: '8', data: 1 })), 103)

    const { status } = await call(one, 'muster.status', { mode: 'dnd', text: 'in a meeting' })
    assert.deepEqual([status.mode, status.text, status.until], ['dnd', 'in a meeting', null])
    assert.equal(await failure(call(one, 'muster.status', { mode: 'asleep' })), 107)
    assert.deepEqual(await call(one, 'muster.status', {}), { status: null })
  },
  async tells_positions_of_a_room(room) {
    const client = connect()
    await client.publish(room, pack(1))
    const history = await client.history(room, { limit: 0 })
    const told = await call(client, 'muster.positions', { room })
    assert.deepEqual([told.epoch, told.offset], [history.epoch, history.offset])
    assert.deepEqual([told.streams.length, told.streams[0].offset], [1, 1])
    assert.equal(await failure(call(connect({ token: reader }), 'muster.positions', { room })), 103)
  },
  async shows_headers_as_tags(room) {
    const [client, late] = [connect(), connect()]
    const [, seen] = await joined(client, room, { recoverable: true, positioned: true })
    const headers = { kind: 'goal', by: 'ä' }
    await call(client, 'muster.publish', { room, data: { n: 1 }, headers })
    await client.publish(room, pack({ n: 2 }))
    await seen.until(() => seen.data().length === 2)
    const tags = ({ tags }) => tags ?? {} // Protobuf: an empty object where there are none
    const told = seen.filter(([event]) => event === 'publication').map(([, context]) => tags(context))
    assert.deepEqual(told, [headers, {}])
    const { publications } = await late.history(room, { limit: 10 })
    assert.deepEqual(publications.map(tags), [headers, {}])
    for (const wrong of [{ 'a b': '' }, { a: 'x'.repeat(1_100) }, { a: 1 }]) {
      assert.equal(await failure(call(client, 'muster.publish', { room, data: 1, headers: wrong })), 107)
    }
  },
  async gets_what_a_filter_lets_through(room) {
    const [client, other, every] = [connect(), connect(), connect()]
    const of = { recoverable: true, positioned: true }
    const tagsFilter = { op: 'and', nodes: [{ key: 'pair', cmp: 'in', vals: ['EUR', 'USD'] }, { key: 'kind', cmp: 'eq', val: 'trade' }] }
    const [, tagged] = await joined(client, room, { ...of, tagsFilter })
    const [, asked] = await joined(every, room, { ...of, data: pack(euros) })
    const pairs = ['EUR', 'JPY', 'USD', 'EUR']
    const publish = async (from, to) => {
      for (let n = from; n < to; n++) {
        const headers = { pair: pairs[n % 4], kind: n % 4 === 3 ? 'offer' : 'trade' }
        await call(other, 'muster.publish', { room, data: { n }, headers })
      }
    }
    const wanted = to => Array.from({ length: to }, (_, n) => n).filter(n => n % 2 === 0)
    const got = seen => seen.data().map(({ n }) => n)
    await publish(0, 20)
    await allSeen(20)
    client.disconnect()
    await publish(20, 40)
    client.connect()
    await allSeen(40)
    const back = tagged.filter(([event]) => event === 'subscribed').at(-1)[1]
    assert.deepEqual([back.wasRecovering, back.recovered], [true, true])
    async function allSeen(to) {
      for (const seen of [tagged, asked]) {
        await seen.until(() => got(seen).length >= wanted(to).length)
        assert.deepEqual(got(seen), wanted(to))
      }
    }
    const refused = other.newSubscription(`${room}-2`, { tagsFilter: { key: 'price', cmp: 'gt', val: '100' } })
    const end = once(refused, 'unsubscribed')
    refused.subscribe()
    assert.deepEqual([(await end).code, (await end).reason], [401, 'a tags filter has eq, in and and alone'])
  },
  async tells_the_gaps_of_a_room_once(room) {
    room = `${small}:${room.split(':')[1]}`
    const [client, other] = [connect(), connect()]
    const [, seen] = await joined(client, room, { recoverable: true, positioned: true })
    await other.publish(room, pack(0))
    await seen.until(() => seen.data().length === 1)
    client.disconnect()
    for (let n = 1; n <= 300; n++) await other.publish(room, pack(n))
    client.connect()
    await seen.until(() => seen.filter(([event]) => event === 'subscribed').length === 2)
    const { gaps } = await call(client, 'muster.gaps', { room })
    assert.deepEqual([gaps.length, gaps[0].first, gaps[0].reason], [1, 2, 'expired'])
    assert.ok(gaps[0].last >= 2 && gaps[0].last <= 301)
    assert.deepEqual((await call(client, 'muster.gaps', { room })).gaps, [])
  },
  async takes_a_message_as_the_difference_to_the_one_before(room) {
    const [client, plain] = [connect(), connect()]
    const [subscription, seen] = await joined(client, room, { delta: 'fossil', recoverable: true, positioned: true })
    const [, whole] = await joined(plain, room)
    const text = n => ({ n, rows: Array.from({ length: 40 }, (_, at) => ({ at, name: `é${at}` })) })
    for (let n = 1; n <= 5; n++) await plain.publish(room, pack(text(n)))
    await seen.until(() => seen.data().length === 5)
    client.disconnect()
    await plain.publish(room, pack(text(6)))
    client.connect()
    await seen.until(() => seen.data().length === 6)
    await plain.publish(room, pack(text(7)))
    await plain.publish(room, pack(text(8)))
    await seen.until(() => seen.data().length === 8)
    assert.deepEqual(seen.data(), Array.from({ length: 8 }, (_, at) => text(at + 1)))
    await whole.until(() => whole.data().length === 8)
    assert.deepEqual(whole.data(), seen.data())
    const { numDeltaPayloads, numFullPayloads, bytesReceived, bytesDecoded } = subscription.deltaStats()
    assert.deepEqual([numDeltaPayloads, numFullPayloads], [5, 3])
    assert.ok(bytesReceived < bytesDecoded / 2)
  },
  async is_told_of_each_right_that_it_lacks(room) {
    const client = connect({ token: reader })
    await joined(client, room)
    assert.equal(await failure(client.publish(room, pack(1))), 103)
    assert.equal(await failure(client.history(room, { limit: 1 })), 103)
    assert.equal(await failure(client.presence(room)), 103)
    assert.equal(await failure(call(client, 'muster.command', { room, data: 1 })), 103)
  },
  async tells_members_a_command_and_hears_how_many_have_it(room) {
    const [one, two] = [connect(), connect({ token: otherToken })]
    await joined(two, room)
    const heard = once(two, 'message')
    let told
    do { told = await call(one, 'muster.command', { room, data: { go: 1 } }) } while (told.outcome === 'no_member')
    assert.deepEqual(told, { outcome: 'delivered', members: 1 })
    assert.deepEqual(unpack((await heard).data), { muster: 'command', room, user: '7', data: { go: 1 } })
  },
  async asks_a_responder_and_is_one(room) {
    const [one, two] = [{}, { token: otherToken }].map(more => connect({ timeout: PATIENT_MS, ...more }))
    const ask = (data, more = {}) => call(one, 'muster.request', { room, data, timeout: 9, ...more })
    assert.deepEqual(await ask(1), { outcome: 'no_responders' })
    const answers = respond(plain(two), room, async data => {
      if (data.wait) await new Promise(() => {})
      if (data.fail) throw new Error('a secret')
      return { eur: data.usd * 2 }
    })
    await answers.ready()
    assert.deepEqual(await ask({ usd: 2 }), { outcome: 'replied', data: { eur: 4 } })
    assert.deepEqual(await ask({ fail: true }), { outcome: 'failed', reason: 'failed' })
    assert.deepEqual(await ask({ wait: true }, { timeout: 0.2 }), { outcome: 'timeout' })
    assert.equal(await failure(ask(1, { timeout: 10 })), 107)
    assert.equal(await failure(ask('x'.repeat(48_000))), 107)
    assert.equal(await failure(call(connect({ token: reader }), 'muster.request', { room, data: 1 })), 103)
    answers.unsubscribe()
  },
  async hears_who_comes_and_who_leaves(room) {
    const [one, two] = [connect(), connect({ token: otherToken })]
    const [, seen] = await joined(one, room, { joinLeave: true })
    const told = () => seen.filter(([event]) => ['join', 'leave'].includes(event)).map(([event, { info }]) => [event, info.user, info.client])
    await seen.until(() => told().length === 1)
    const [other] = await joined(two, room)
    await seen.until(() => told().length === 2)
    other.unsubscribe()
    await seen.until(() => told().length === 3)
    assert.deepEqual(told(), [['join', '7', 'u7'], ['join', '8', 'u8'], ['leave', '8', 'u8']])
  },
  async is_subscribed_to_the_rooms_of_its_token() {
    const [client, other] = [connect({ token: enters }), connect({ token: otherToken })]
    const seen = watch(client)
    const subscribed = () => seen.filter(([event]) => event === 'subscribed').map(([, context]) => context)
    await seen.until(() => subscribed().length === 1)
    assert.deepEqual([subscribed()[0].channel, subscribed()[0].recoverable], [hall, true])
    const mine = `${encoding}-${Math.random()}`
    const numbers = () => seen.data().filter(data => data.mine === mine).map(data => data.n)
    await other.publish(hall, pack({ mine, n: 1 }))
    await seen.until(() => numbers().length === 1)
    client.disconnect()
    for (const n of [2, 3]) await other.publish(hall, pack({ mine, n }))
    client.connect()
    await seen.until(() => numbers().length === 3)
    assert.deepEqual(numbers(), [1, 2, 3])
    assert.deepEqual([subscribed()[1].wasRecovering, subscribed()[1].recovered], [true, true])
    client.disconnect()
    for (let n = 4; n <= 304; n++) await other.publish(hall, pack({ mine, n }))
    client.connect()
    await seen.until(() => subscribed().length === 3)
    assert.deepEqual([subscribed()[2].wasRecovering, subscribed()[2].recovered], [true, false])
    await other.publish(hall, pack({ mine, n: 305 }))
    await seen.until(() => numbers().at(-1) === 305)
    assert.deepEqual(numbers(), [1, 2, 3, 305])
  },
  async is_refused_with_a_wrong_token() {
    const client = connect({ token: wrong })
    const context = await once(client, 'disconnected')
    assert.equal(context.code, 3500)
  },
  async brings_another_token_for_one_that_has_expired() {
    const tokens = [expired, token]
    const client = connect({ token: '', getToken: async () => tokens.shift() ?? token })
    await once(client, 'connected')
    assert.ok(tokens.length <= 1)
  },
  async takes_large_messages(room) {
    const client = connect()
    const [, seen] = await joined(client, room)
    const text = 'é'.repeat(20_000)
    await client.publish(room, pack(text))
    await seen.until(() => seen.data().length === 1)
    assert.equal(seen.data()[0], text)
  },
  async reads_many_rooms_by_one_connection(room) {
    const client = connect()
    const many = await Promise.all(Array.from({ length: 60 }, (_, at) => joined(client, `${room}-${at}`)))
    await Promise.all(many.map(([subscription], at) => subscription.publish(pack(at))))
    await Promise.all(many.map(([, seen]) => seen.until(() => seen.data().length === 1)))
    assert.deepEqual(many.map(([, seen]) => seen.data()[0]), many.map((_, at) => at))
  },
}

if (url === 'names') { console.log(JSON.stringify(Object.keys(cases))); process.exit(0) }
for (const name of wanted) {
  const room = `edge:${name.slice(0, 40)}-${Math.random().toString(36).slice(2)}`
  let timer, hangs = false
  const late = new Promise((_, reject) => { timer = setTimeout(() => { hangs = true; reject(new Error('nothing came in time')) }, PATIENT_MS) })
  try {
    await Promise.race([cases[name](room), late])
    console.log(JSON.stringify({ case: name }))
  } catch (error) {
    console.log(JSON.stringify({ case: name, error: String(error.stack ?? error.message ?? JSON.stringify(error)) }))
  }
  clearTimeout(timer)
  if (hangs) break // the others may hang as well
  for (const client of open) { client.disconnect(); open.delete(client) }
}
process.exit(0)
