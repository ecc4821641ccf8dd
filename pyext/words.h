/* Loops over 64-bit words that count bits, by the processor's own instruction where it has one. Knows no Python. */
#include <stddef.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__x86_64__)
#define MUSTER_POPCNT __attribute__((target("popcnt")))
static inline int muster_has_popcnt(void) { return __builtin_cpu_supports("popcnt"); }
#else
#define MUSTER_POPCNT
static inline int muster_has_popcnt(void) { return 1; }
#endif

#define MUSTER_COUNT_BODY \
    ptrdiff_t count = 0; \
    for (ptrdiff_t i = 0; i < length; i++) count += __builtin_popcountll(words[i]); \
    return count;

MUSTER_POPCNT static inline ptrdiff_t muster_count_fast(const uint64_t *words, ptrdiff_t length) { MUSTER_COUNT_BODY }
static inline ptrdiff_t muster_count_slow(const uint64_t *words, ptrdiff_t length) { MUSTER_COUNT_BODY }

/* How many bits are set. */
static inline ptrdiff_t muster_count(const uint64_t *words, ptrdiff_t length) {
    return muster_has_popcnt() ? muster_count_fast(words, length) : muster_count_slow(words, length);
}

#define MUSTER_WITHOUT_PARAMETERS \
    const uint64_t *words, const uint64_t *a, const uint64_t *b, const uint64_t *c, uint64_t *out, ptrdiff_t length
#define MUSTER_WITHOUT_BODY \
    ptrdiff_t count = 0; \
    for (ptrdiff_t i = 0; i < length; i++) { \
        uint64_t word = words[i]; \
        if (a) word &= ~a[i]; \
        if (b) word &= ~b[i]; \
        if (c) word &= ~c[i]; \
        out[i] = word; \
        count += __builtin_popcountll(word); \
    } \
    return count;

MUSTER_POPCNT static inline ptrdiff_t muster_without_fast(MUSTER_WITHOUT_PARAMETERS) { MUSTER_WITHOUT_BODY }
static inline ptrdiff_t muster_without_slow(MUSTER_WITHOUT_PARAMETERS) { MUSTER_WITHOUT_BODY }

/* out = words without a, b and c, of which each may be null. Returns how many bits are set. */
static inline ptrdiff_t muster_without(MUSTER_WITHOUT_PARAMETERS) {
    return muster_has_popcnt() ? muster_without_fast(words, a, b, c, out, length)
                               : muster_without_slow(words, a, b, c, out, length);
}

/* Bit i of `out` says whether values[i] > bound, for `length` words of 64. Returns how many are set. */
static inline ptrdiff_t muster_above(const int32_t *values, int32_t bound, uint64_t *out, ptrdiff_t length) {
    for (ptrdiff_t i = 0; i < length; i++, values += 64) {
        uint64_t word = 0;
#if defined(__SSE2__)
        const __m128i at_most = _mm_set1_epi32(bound);
        for (int part = 0; part < 4; part++) {
            __m128i more[4];
            for (int k = 0; k < 4; k++)
                more[k] = _mm_cmpgt_epi32(_mm_loadu_si128((const __m128i *)(values + 16 * part + 4 * k)), at_most);
            __m128i packed = _mm_packs_epi16(_mm_packs_epi32(more[0], more[1]), _mm_packs_epi32(more[2], more[3]));
            word |= (uint64_t)(uint16_t)_mm_movemask_epi8(packed) << (16 * part);
        }
#else
        for (int bit = 0; bit < 64; bit++) word |= (uint64_t)(values[bit] > bound) << bit;
#endif
        out[i] = word;
    }
    return muster_count(out, length);
}

/* Whether one of the numbers is `bound` or more. */
static inline int muster_beyond(const uint32_t *numbers, ptrdiff_t length, uint32_t bound) {
    uint32_t beyond = 0;
    for (ptrdiff_t i = 0; i < length; i++) beyond |= numbers[i] >= bound;
    return beyond != 0;
}

/* splitmix64's number for a state; the state grows by MUSTER_GAMMA before each. */
#define MUSTER_GAMMA UINT64_C(0x9E3779B97F4A7C15)
static inline uint64_t muster_mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* The place of the lowest bit set; `word` is not 0. */
static inline int muster_lowest(uint64_t word) { return __builtin_ctzll(word); }

/* Two numbers below `bound`, which is at most 2**26, from the halves of a random one: each as likely, but for 2**-6. */
static inline uint64_t muster_upper(uint64_t random, uint64_t bound) { return ((random >> 32) * bound) >> 32; }
static inline uint64_t muster_lower(uint64_t random, uint64_t bound) { return ((uint64_t)(uint32_t)random * bound) >> 32; }

/* Two set bits, each as likely and perhaps the same, by probing all `length` words; at least one bit is set. Each random number
   gives two probes, and two numbers are looked at together, which gives what one after the other would: the state ends after
   the number whose probe was the second to hit. */
static inline void muster_probe_two(const uint64_t *words, ptrdiff_t length, uint64_t *state, ptrdiff_t *one, ptrdiff_t *other) {
    const uint64_t bits = (uint64_t)length * 64;
    ptrdiff_t *wanted = one;
    for (;; *state += 2 * MUSTER_GAMMA) {
        const uint64_t first = muster_mixed(*state + MUSTER_GAMMA), second = muster_mixed(*state + 2 * MUSTER_GAMMA);
        const uint64_t at[4] = {
            muster_upper(first, bits), muster_lower(first, bits), muster_upper(second, bits), muster_lower(second, bits)
        };
        unsigned hits = 0;
        for (int k = 0; k < 4; k++) hits |= (unsigned)((words[at[k] >> 6] >> (at[k] & 63)) & 1) << k;
        for (; hits; hits &= hits - 1) {
            int hit = __builtin_ctz(hits);
            *wanted = (ptrdiff_t)at[hit];
            if (wanted == other) {
                *state += (uint64_t)(hit / 2 + 1) * MUSTER_GAMMA;
                return;
            }
            wanted = other;
        }
    }
}

#if defined(__SSE2__)
static inline __m128i muster_greater(__m128i a, __m128i b) {
    __m128i more = _mm_cmpgt_epi32(a, b);
    return _mm_or_si128(_mm_and_si128(more, a), _mm_andnot_si128(more, b));
}
#endif

/* values[n] = min(max(values[n], now) + cost, most) for each number n, one after the other; four that follow each other at
   once. now + cost and values below `most` + cost do not overflow. */
static inline void muster_raise(
    int32_t *values, const uint32_t *numbers, ptrdiff_t length, int32_t now, int32_t cost, int32_t most
) {
    for (ptrdiff_t i = 0; i < length; i++) {
#if defined(__SSE2__)
        const __m128i steps = _mm_set_epi32(3, 2, 1, 0);
        for (; i + 4 <= length; i += 4) {
            __m128i four = _mm_loadu_si128((const __m128i *)(numbers + i));
            __m128i follow = _mm_add_epi32(_mm_set1_epi32((int)numbers[i]), steps);
            if (_mm_movemask_epi8(_mm_cmpeq_epi32(four, follow)) != 0xFFFF) break;
            __m128i *at = (__m128i *)(values + numbers[i]);
            __m128i raised = _mm_add_epi32(muster_greater(_mm_loadu_si128(at), _mm_set1_epi32(now)), _mm_set1_epi32(cost));
            __m128i over = _mm_cmpgt_epi32(raised, _mm_set1_epi32(most));
            raised = _mm_or_si128(_mm_and_si128(over, _mm_set1_epi32(most)), _mm_andnot_si128(over, raised));
            _mm_storeu_si128(at, raised);
        }
        if (i == length) break;
#endif
        int32_t value = values[numbers[i]];
        value = (value > now ? value : now) + cost;
        values[numbers[i]] = value < most ? value : most;
    }
}
