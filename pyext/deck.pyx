# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Fair picks: a deck of clients from which each is dealt once a round, in random order, rested ones first.

Owns which clients were dealt in the round, and the draw. It must not know names, selectors or a clock: members come as
bits (64 dense numbers a word), weights as the array of `muster_server.pyext.weights`, randomness as a seed. A client that joins is owed
a turn; one that leaves and comes back in the same round is still dealt. A client's turn is kept by one bit, so nothing
grows with the number of rounds, joins or leaves.

The draw is part of the promise, for a stored seed must give the same clients again: splitmix64, begun with the seed and the
number of open clients; each number gives two numbers below n, from its upper and its lower 32 bits times n; of two candidates
the one whose weight is whole sooner, the first if alike. Both candidates of a client come from one number where the open
clients are listed in ascending order; where few probes are expected to fail (`probes`) they are the first two open ones that
the numbers name among all bits.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np


cdef extern from "words.h":
    Py_ssize_t open_words "muster_without"(
        const uint64_t *members, const uint64_t *a, const uint64_t *b, const uint64_t *c, uint64_t *out, Py_ssize_t length
    ) noexcept nogil
    uint64_t upper "muster_upper"(uint64_t random, uint64_t bound) noexcept nogil
    uint64_t lower "muster_lower"(uint64_t random, uint64_t bound) noexcept nogil
    int lowest_bit "muster_lowest"(uint64_t word) noexcept nogil
    const uint64_t GAMMA "MUSTER_GAMMA"
    uint64_t mixed "muster_mixed"(uint64_t state) noexcept nogil
    void probe_two "muster_probe_two"(
        const uint64_t *words, Py_ssize_t length, uint64_t *state, Py_ssize_t *one, Py_ssize_t *other
    ) noexcept nogil


# Bits of a deck: `probes` multiplies three numbers of this size.
BITS_MAX = 1 << 26


cdef inline bint probes(Py_ssize_t wanted, Py_ssize_t held, Py_ssize_t length) noexcept nogil:
    """Whether about 2 x wanted x bits / open probes cost less than a walk over all words and a list of the open ones.

    A probe costs as much as six entries. 12 x 2**26 x 2**26 < 2**63: a deck has at most 2**26 bits.
    """
    return 12 * wanted * length * 64 < (held - wanted + 1) * (length + held)


cdef class Draw:
    cdef readonly object clients
    cdef readonly uint64_t seed
    cdef readonly uint64_t round
    cdef readonly Py_ssize_t of_round
    cdef readonly Py_ssize_t tired
    cdef readonly Py_ssize_t excused

    def __repr__(self):
        return f"Draw({len(self.clients)} clients, seed {self.seed}, round {self.round})"


cdef class Deck:
    cdef readonly uint64_t round
    cdef readonly object dealt
    cdef uint64_t[::1] dealt_view
    cdef uint64_t[::1] open

    def __init__(self, words, round=0, dealt=None):
        if not 1 <= words * 64 <= BITS_MAX:
            raise ValueError(f"a deck has 1 to {BITS_MAX // 64} words, not {words}")
        self.round = round
        self.dealt = np.zeros(words, dtype=np.uint64)
        if dealt is not None:
            if len(dealt) > words:
                raise ValueError(f"{len(dealt)} words do not fit a deck of {words}")
            self.dealt[: len(dealt)] = dealt
        self.dealt_view = self.dealt
        self.open = np.empty(words, dtype=np.uint64)

    def grow(self, words):
        if words > len(self.dealt):
            self.__init__(words, self.round, self.dealt)

    def forget(self, const uint32_t[::1] clients):
        cdef Py_ssize_t i
        for i in range(clients.shape[0]):
            if <Py_ssize_t>(clients[i] >> 6) < self.dealt_view.shape[0]:
                self.dealt_view[clients[i] >> 6] &= ~(<uint64_t>1 << (clients[i] & 63))

    cdef Py_ssize_t _draw(
        self, Py_ssize_t wanted, Py_ssize_t held, uint64_t *state, const int32_t[::1] rested_at, int32_t now, uint32_t *out
    ) noexcept nogil:
        """Up to `wanted` of the `held` open clients into `out`; they are dealt and no longer open. -1: no memory."""
        cdef Py_ssize_t n, left = held, word, one, other, chosen, client, length = self.open.shape[0]
        cdef uint64_t bits
        cdef uint64_t *open = &self.open[0]
        cdef uint64_t *dealt = &self.dealt_view[0]
        cdef uint32_t *listed = NULL
        cdef int32_t first, second
        if wanted > held:
            wanted = held
        if wanted == 0:
            return 0
        if not probes(wanted, held, length):
            listed = <uint32_t *>malloc(held * sizeof(uint32_t))
            if listed == NULL:
                return -1
            n = 0
            for word in range(length):
                bits = open[word]
                while bits:
                    listed[n] = <uint32_t>(word * 64 + lowest_bit(bits))
                    n += 1
                    bits &= bits - 1
        for n in range(wanted):
            if listed != NULL:
                state[0] += GAMMA
                bits = mixed(state[0])
                one, other = <Py_ssize_t>upper(bits, left), <Py_ssize_t>lower(bits, left)
                first, second = rested_at[listed[one]], rested_at[listed[other]]
            else:
                probe_two(open, length, state, &one, &other)
                first, second = rested_at[one], rested_at[other]
            chosen = other if (second if second > now else now) < (first if first > now else now) else one
            client = chosen
            if listed != NULL:
                client = listed[chosen]
                listed[chosen] = listed[left - 1]
            left -= 1
            bits = <uint64_t>1 << (client & 63)
            dealt[client >> 6] |= bits
            open[client >> 6] &= ~bits
            out[n] = <uint32_t>client
        free(listed)
        return wanted

    cdef Py_ssize_t _without(self, const uint32_t *clients, Py_ssize_t count, Py_ssize_t held) noexcept nogil:
        """Closes `clients`; returns how many are open then."""
        cdef Py_ssize_t i
        cdef uint64_t bit
        for i in range(count):
            bit = <uint64_t>1 << (clients[i] & 63)
            held -= (self.open[clients[i] >> 6] & bit) != 0
            self.open[clients[i] >> 6] &= ~bit
        return held

    def pick(
        self,
        Py_ssize_t wanted,
        uint64_t seed,
        const uint64_t[::1] members,
        const int32_t[::1] rested_at,
        int32_t now,
        const uint64_t[::1] tired=None,
        const uint64_t[::1] barred=None,
    ):
        cdef Py_ssize_t length = self.open.shape[0], most
        if members.shape[0] != length or (tired is not None and tired.shape[0] != length):
            raise ValueError(f"members and tired have {length} words, as the deck")
        if barred is not None and barred.shape[0] != length:
            raise ValueError(f"barred has {length} words, as the deck")
        if rested_at.shape[0] < length * 64:
            raise ValueError(f"{rested_at.shape[0]} weights for {length * 64} clients")
        if wanted < 0:
            raise ValueError(f"{wanted} clients cannot be picked")
        cdef const uint64_t *tired_words = &tired[0] if tired is not None else NULL
        cdef const uint64_t *barred_words = &barred[0] if barred is not None else NULL
        most = min(wanted, length * 64)
        clients = np.empty(most, dtype=np.uint32)
        cdef uint32_t[::1] view = clients
        cdef Draw draw = Draw.__new__(Draw)
        draw.seed = seed
        draw.round = self.round
        cdef Py_ssize_t done = 0
        if most:
            with nogil:
                done = self._pick(most, seed, &members[0], rested_at, now, tired_words, barred_words, &view[0], draw)
            if done < 0:
                raise MemoryError
        draw.clients = clients if done == most else clients[:done].copy()
        return draw

    cdef Py_ssize_t _pick(
        self, Py_ssize_t wanted, uint64_t state, const uint64_t *members, const int32_t[::1] rested_at, int32_t now,
        const uint64_t *tired, const uint64_t *barred, uint32_t *out, Draw draw,
    ) noexcept nogil:
        """What the round owes, then the next round; in each the rested first. No client twice. -1: no memory."""
        cdef Py_ssize_t length = self.open.shape[0], done, more, held
        cdef uint64_t *dealt = &self.dealt_view[0]
        held = open_words(members, dealt, barred, tired, &self.open[0], length)
        state = mixed(state ^ <uint64_t>held)  # a seed that comes again would probe what it dealt
        done = self._draw(wanted, held, &state, rested_at, now, out)
        if done < 0:
            return -1
        if done < wanted and tired != NULL:
            held = open_words(members, dealt, barred, NULL, &self.open[0], length)
            more = self._draw(wanted - done, held, &state, rested_at, now, out + done)
            if more < 0:
                return -1
            draw.tired += more
            done += more
        draw.of_round = done
        if done == wanted:
            return done
        held = open_words(members, NULL, barred, NULL, &self.open[0], length)
        if self._without(out, done, held) == 0:  # this draw has picked every open client
            return done
        draw.excused = open_words(members, dealt, NULL, NULL, &self.open[0], length)
        self.round += 1
        memset(dealt, 0, 8 * length)
        held = open_words(members, NULL, barred, tired, &self.open[0], length)
        held = self._without(out, draw.of_round, held)
        more = self._draw(wanted - done, held, &state, rested_at, now, out + done)
        if more < 0:
            return -1
        done += more
        if done < wanted and tired != NULL:
            held = open_words(members, dealt, barred, NULL, &self.open[0], length)
            held = self._without(out, draw.of_round, held)
            more = self._draw(wanted - done, held, &state, rested_at, now, out + done)
            if more < 0:
                return -1
            draw.tired += more
            done += more
        if draw.of_round == 0:
            draw.round = self.round
            draw.of_round = done
        return done

    def __repr__(self):
        return f"Deck({len(self.dealt)} words, round {self.round})"
