// The live parts of a page: one connection to the edge for all its rooms, and hints from the inbox.
// Pages read and write without it; a page that missed something loads that part again.
'use strict'

const body = document.body
const trouble = text => { const at = document.getElementById('trouble'); at.textContent = text; at.hidden = !text }

// --- htmx: errors in words, and nothing twice where an answer and a message bring the same ---------------------------
body.addEventListener('htmx:responseError', event => trouble(event.detail.xhr.responseText.slice(0, 300)))
body.addEventListener('htmx:sendError', () => trouble('The portal does not answer. Try again in a moment.'))
body.addEventListener('htmx:beforeSwap', event => {
  const id = /^\s*<li id="([\w-]+)"/.exec(event.detail.serverResponse ?? '')?.[1]
  if (id && document.getElementById(id)) event.detail.shouldSwap = false
})
body.addEventListener('htmx:afterRequest', event => {
  if (event.detail.successful) trouble('')
  if (event.detail.successful && event.detail.elt.matches('[data-clears]')) event.detail.elt.reset()
})

// --- rooms -------------------------------------------------------------------------------------------------------------
const edge = new URL(body.dataset.edge, location.href)
edge.protocol = edge.protocol.replace('http', 'ws')
const client = new Centrifuge(edge.href, {
  getToken: async () => (await (await fetch('/token')).json()).token,
  minReconnectDelay: 200,
  maxReconnectDelay: 5000,
})
const state = document.getElementById('live')
client.on('state', ({ newState }) => {
  state.dataset.state = newState === 'connected' ? 'on' : 'off'
  state.textContent = newState === 'connected' ? 'live' : 'not live'
})

// Messages of a room, from what a page shows on. `again`: called where some are lost.
function hear(name, take, again = () => {}) {
  const room = client.newSubscription(name, { recoverable: true, positioned: true })
  room.on('publication', ({ data }) => take(data))
  room.on('subscribed', ({ wasRecovering, recovered }) => { if (!wasRecovering || !recovered) again() })
  room.subscribe()
}

function insert(list, { id, html, field }) {
  if (document.getElementById(id) || (list.dataset.field && list.dataset.field !== field)) return
  list.insertAdjacentHTML(list.dataset.insert === 'first' ? 'afterbegin' : 'beforeend', html)
  while (list.children.length > Number(list.dataset.most || 1000)) list.lastElementChild.remove()
  htmx.process(list)
}

for (const list of document.querySelectorAll('[data-room]')) {
  const again = list.dataset.again && (() => htmx.ajax('GET', list.dataset.again, { target: list, swap: 'innerHTML' }))
  hear(list.dataset.room, data => insert(list, data), again || undefined)
}
for (const item of new Set([...document.querySelectorAll('[data-likes]')].map(each => each.dataset.likes))) {
  hear(`likes:${item}`, count => {
    for (const each of document.querySelectorAll(`[data-likes="${item}"]`)) each.textContent = count
  })
}

// --- this member --------------------------------------------------------------------------------------------------------
const told = () => body.dispatchEvent(new Event('told'))
if (body.dataset.session) {
  hear(`session:${body.dataset.session}`, ({ ended }) => { location.assign(`/login?ended=${encodeURIComponent(ended)}`) })
  hear('audience:all', told)
  client.on('message', ({ data }) => {
    const what = typeof data.data === 'string' ? JSON.parse(data.data) : data.data
    if (what.inbox) told()
    if (what.letter) told()
    if (what.letter) body.dispatchEvent(new CustomEvent('letter', { detail: what.letter }))
  })
}
const talk = document.querySelector('[data-talk]')
if (talk) {
  const other = talk.dataset.talk
  body.addEventListener('letter', ({ detail }) => {
    if (detail === other) htmx.ajax('GET', `/letters/${other}/list`, { target: '#letters', swap: 'innerHTML' })
  })
}
client.connect()
