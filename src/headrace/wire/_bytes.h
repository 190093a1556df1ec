/* Big-endian integers and varints at a pointer. Callers check the bounds. */
#ifndef HEADRACE_BYTES_H
#define HEADRACE_BYTES_H

#include <stdint.h>
#include <string.h>

static inline void hr_put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void hr_put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void hr_put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline uint16_t hr_get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t hr_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t hr_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }

static inline uint64_t hr_zigzag(int64_t v) { return (uint64_t)v << 1 ^ (uint64_t)(v >> 63); }
static inline int64_t hr_unzigzag(uint64_t v) { return (int64_t)(v >> 1 ^ -(v & 1)); }

/* Seven bits a byte: (bits + 6) / 7. */
static inline int hr_uvarint_size(uint64_t v) { return (70 - __builtin_clzll(v | 1)) / 7; }
static inline int hr_varint_size(int64_t v) { return hr_uvarint_size(hr_zigzag(v)); }

static inline uint8_t *hr_put_uvarint(uint8_t *p, uint64_t v) {
    while (v > 0x7f) {
        *p++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *p++ = (uint8_t)v;
    return p;
}

static inline uint8_t *hr_put_varint(uint8_t *p, int64_t v) { return hr_put_uvarint(p, hr_zigzag(v)); }

/* Returns the position after the varint, or NULL if it is truncated, too long or too large for `bits`. */
static inline const uint8_t *hr_get_uvarint(const uint8_t *p, const uint8_t *end, int bits, uint64_t *out) {
    if (p < end && *p < 0x80) {
        *out = *p;
        return p + 1;
    }
    uint64_t v = 0;
    for (int shift = 0; shift < (bits == 32 ? 35 : 70) && p < end; shift += 7) {
        uint64_t byte = *p++;
        if (shift == 63 && byte > 1) return NULL;
        v |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = v;
            return bits == 32 && v >> 32 ? NULL : p;
        }
    }
    return NULL;
}

static inline const uint8_t *hr_get_varint(const uint8_t *p, const uint8_t *end, int bits, int64_t *out) {
    uint64_t raw;
    p = hr_get_uvarint(p, end, bits, &raw);
    if (p) *out = hr_unzigzag(raw);
    return p;
}

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
static inline int hr_is_utf8(const uint8_t *p, int64_t size) {
    const uint8_t *end = p + size;
    while (p < end) {
        uint8_t first = *p++;
        if (first < 0x80) continue;
        int more = first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 0;
        if (!more || end - p < more) return 0;
        if ((first == 0xe0 && *p < 0xa0) || (first == 0xed && *p > 0x9f) || (first == 0xf0 && *p < 0x90) ||
            (first == 0xf4 && *p > 0x8f))
            return 0;
        while (more--)
            if ((*p++ & 0xc0) != 0x80) return 0;
    }
    return 1;
}

/* Kafka's murmur2: seed 0x9747b28c, all 32 bits, signed. */
static inline int32_t hr_murmur2(const uint8_t *data, int32_t length) {
    const uint32_t m = 0x5bd1e995u;
    uint32_t h = 0x9747b28cu ^ (uint32_t)length, k;
    for (; length >= 4; data += 4, length -= 4) {
        k = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        k *= m;
        k ^= k >> 24;
        h = h * m ^ k * m;
    }
    switch (length) {
    case 3: h ^= (uint32_t)data[2] << 16; /* fall through */
    case 2: h ^= (uint32_t)data[1] << 8;  /* fall through */
    case 1: h ^= data[0]; h *= m;
    }
    h ^= h >> 13;
    h *= m;
    return (int32_t)(h ^ h >> 15);
}

#endif
