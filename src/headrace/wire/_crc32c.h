/* CRC32C (Castagnoli), with the CPU's instruction if it has one; and zlib's CRC32, for message sets.
 *
 * The instruction processes eight bytes with a latency of three cycles, so three streams run in parallel and are
 * combined with tables that advance a checksum over HR_STRIDE zero bytes.
 */
#ifndef HEADRACE_CRC32C_H
#define HEADRACE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HR_POLY 0x82f63b78u /* reflected, like the next */
#define HR_ZLIB_POLY 0xedb88320u
#define HR_STRIDE 256u

static uint32_t hr_slice[8][256]; /* slicing by eight, without the instruction */
static uint32_t hr_zlib_slice[8][256];
static uint32_t hr_shift[4][256]; /* advances over HR_STRIDE zero bytes */
static int hr_has_instruction;

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HR_HARDWARE __attribute__((target("sse4.2")))
#include <nmmintrin.h>
#define HR_STEP64(crc, word) _mm_crc32_u64((crc), (word))
#define HR_STEP8(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
static int hr_detect(void) { __builtin_cpu_init(); return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define HR_HARDWARE
#include <arm_acle.h>
#define HR_STEP64(crc, word) __crc32cd((uint32_t)(crc), (word))
#define HR_STEP8(crc, byte) __crc32cb((uint32_t)(crc), (byte))
static int hr_detect(void) { return 1; }
#else
static int hr_detect(void) { return 0; }
#endif

static uint32_t hr_crc_sliced(uint32_t slice[8][256], uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = slice[7][low & 0xff] ^ slice[6][low >> 8 & 0xff] ^ slice[5][low >> 16 & 0xff] ^ slice[4][low >> 24] ^
              slice[3][p[4]] ^ slice[2][p[5]] ^ slice[1][p[6]] ^ slice[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--) crc = slice[0][(crc ^ *p++) & 0xff] ^ crc >> 8;
    return crc;
}

static uint32_t hr_crc_software(uint32_t crc, const uint8_t *p, size_t n) {
    return hr_crc_sliced(hr_slice, crc, p, n);
}

static void hr_crc_fill(uint32_t slice[8][256], uint32_t poly) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ poly : c >> 1;
        slice[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) slice[k][i] = slice[0][slice[k - 1][i] & 0xff] ^ slice[k - 1][i] >> 8;
}

static void hr_crc_init(void) {
    hr_crc_fill(hr_slice, HR_POLY);
    hr_crc_fill(hr_zlib_slice, HR_ZLIB_POLY);
    /* The checksum is linear: advance each of the 4 x 256 byte values over the zeros once. */
    static const uint8_t zeros[HR_STRIDE];
    for (int k = 0; k < 4; k++)
        for (uint32_t i = 0; i < 256; i++) hr_shift[k][i] = hr_crc_software(i << (8 * k), zeros, HR_STRIDE);
    hr_has_instruction = hr_detect();
}

#ifdef HR_HARDWARE
static inline uint32_t hr_advance(uint32_t crc) {
    return hr_shift[0][crc & 0xff] ^ hr_shift[1][crc >> 8 & 0xff] ^ hr_shift[2][crc >> 16 & 0xff] ^ hr_shift[3][crc >> 24];
}

HR_HARDWARE static uint32_t hr_crc_hardware(uint32_t start, const uint8_t *p, size_t n) {
    uint64_t a = start, word;
    while (n >= 3 * HR_STRIDE) {
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < HR_STRIDE; i += 8) {
            memcpy(&word, p + i, 8);
            a = HR_STEP64(a, word);
            memcpy(&word, p + HR_STRIDE + i, 8);
            b = HR_STEP64(b, word);
            memcpy(&word, p + 2 * HR_STRIDE + i, 8);
            c = HR_STEP64(c, word);
        }
        a = hr_advance(hr_advance((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
        p += 3 * HR_STRIDE;
        n -= 3 * HR_STRIDE;
    }
    while (n >= 8) {
        memcpy(&word, p, 8);
        a = HR_STEP64(a, word);
        p += 8;
        n -= 8;
    }
    while (n--) a = HR_STEP8(a, *p++);
    return (uint32_t)a;
}
#endif

static uint32_t hr_crc32c(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
#ifdef HR_HARDWARE
    if (hr_has_instruction) return ~hr_crc_hardware(crc, p, n);
#endif
    return ~hr_crc_software(crc, p, n);
}

static uint32_t hr_crc32(const uint8_t *p, size_t n) {
    return ~hr_crc_sliced(hr_zlib_slice, ~(uint32_t)0, p, n);
}

#endif
