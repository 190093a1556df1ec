/* A 64-bit hash of a row, cell by cell, defined by _reference/checksums.py.

   It detects accidental differences; it does not protect against deliberate collisions. */
#ifndef HEADRACE_ROW_HASH_H
#define HEADRACE_ROW_HASH_H

#include <stdint.h>
#include <string.h>

/* From the fractional parts of the golden ratio and of the square roots of 2, 3 and 5: odd, and about half the bits set. */
#define HR_HASH_A 0x9e3779b97f4a7c15ull
#define HR_HASH_B 0x6a09e667f3bcc909ull
#define HR_HASH_C 0xbb67ae8584caa73bull
#define HR_HASH_D 0x3c6ef372fe94f82bull

static inline uint64_t hr_hash_word(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint64_t hr_hash_half(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

/* Both halves of the product, so that every bit of each factor affects every bit of the result. */
static inline uint64_t hr_fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The initial value. Not 0, because a product with 0 stays 0. */
#define HR_HASH_START HR_HASH_A

/* Returns `hash` continued over a cell of `size` bytes; -1: null. */
static inline uint64_t hr_hash_cell(uint64_t hash, const uint8_t *p, int64_t size) {
    uint64_t lane1 = hash, lane2 = hash, first = 0, last = 0;
    int64_t left = size;
    for (; left > 32; p += 32, left -= 32) { /* two lanes: the CPU runs two multiplications at a time */
        lane1 = hr_fold(hr_hash_word(p) ^ HR_HASH_A, hr_hash_word(p + 8) ^ lane1);
        lane2 = hr_fold(hr_hash_word(p + 16) ^ HR_HASH_B, hr_hash_word(p + 24) ^ lane2);
    }
    if (left > 16) {
        lane1 = hr_fold(hr_hash_word(p) ^ HR_HASH_A, hr_hash_word(p + 8) ^ lane1);
        p += 16, left -= 16;
    }
    /* At most 16 bytes are left. The last words may overlap bytes that were hashed before; the size, which is hashed,
       too, makes that unambiguous. */
    if (size >= 16) {
        first = hr_hash_word(p + left - 16);
        last = hr_hash_word(p + left - 8);
    } else if (size >= 8) {
        first = hr_hash_word(p);
        last = hr_hash_word(p + size - 8);
    } else if (size >= 4) {
        first = hr_hash_half(p);
        last = hr_hash_half(p + size - 4);
    } else if (size > 0) {
        first = (uint64_t)p[0] | (uint64_t)p[size >> 1] << 8 | (uint64_t)p[size - 1] << 16;
    }
    lane1 = hr_fold(first ^ HR_HASH_C, last ^ lane1);
    return hr_fold(lane1 ^ lane2, (uint64_t)(size + 1) ^ HR_HASH_D);
}

#endif
