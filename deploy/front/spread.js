// Chooses the server of a client: the halves of its address XORed, modulo the number of servers. A client keeps its
// server as long as that one lives. nginx calls `server` through njs; SERVERS is the number of upstreams in nginx.conf.

const SERVERS = 2

// `address`: the bytes of an IPv4 or IPv6 address. Returns 0 to `servers` - 1.
function place(address, servers) {
    let folded = 0
    for (let at = 0; at < address.length; at += 2) folded ^= (address[at] << 8) | address[at + 1]
    return folded % servers
}

function server(request) {
    return String(place(request.rawVariables.binary_remote_addr, SERVERS))
}

export default { place, server }
