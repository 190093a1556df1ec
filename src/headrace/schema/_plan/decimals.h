/* Decimals of all formats: little-endian numbers of 32 bytes here, as Arrow has them; big-endian ones of any size in values. */

#ifndef HEADRACE_PLAN_DECIMALS_H
#define HEADRACE_PLAN_DECIMALS_H

#include <stdint.h>
#include <string.h>

#define HR_DECIMAL_BYTES 32

/* Whether a little-endian number of 32 bytes is below the limit, apart from its sign. */
static int hr_decimal_fits(const uint8_t *number, const uint8_t *limit) {
    uint8_t magnitude[HR_DECIMAL_BYTES];
    int i;
    memcpy(magnitude, number, HR_DECIMAL_BYTES);
    if (number[HR_DECIMAL_BYTES - 1] & 0x80) {
        int carry = 1;
        for (i = 0; i < HR_DECIMAL_BYTES; i++) {
            int sum = (uint8_t)~number[i] + carry;
            magnitude[i] = (uint8_t)sum;
            carry = sum >> 8;
        }
    }
    for (i = HR_DECIMAL_BYTES - 1; i >= 0; i--)
        if (magnitude[i] != limit[i]) return magnitude[i] < limit[i];
    return 0;
}

/* Read a big-endian number; returns 0 if it needs more than 32 bytes. */
static int hr_decimal_read(const uint8_t *p, int64_t size, uint8_t *number) {
    uint8_t sign = size && (p[0] & 0x80) ? 0xFF : 0;
    int64_t i;
    memset(number, sign, HR_DECIMAL_BYTES);
    for (i = 0; i < size; i++) {
        if (i < HR_DECIMAL_BYTES) number[i] = p[size - 1 - i];
        else if (p[size - 1 - i] != sign) return 0;
    }
    return size <= HR_DECIMAL_BYTES || !((number[HR_DECIMAL_BYTES - 1] ^ sign) & 0x80);
}

/* Widen a little-endian number of `width` bytes. */
static void hr_decimal_widen(const uint8_t *p, int32_t width, uint8_t *number) {
    memset(number, p[width - 1] & 0x80 ? 0xFF : 0, HR_DECIMAL_BYTES);
    memcpy(number, p, (size_t)width);
}

/* How many bytes a number needs at least. */
static int64_t hr_decimal_size(const uint8_t *number) {
    uint8_t sign = number[HR_DECIMAL_BYTES - 1] & 0x80 ? 0xFF : 0;
    int64_t size;
    for (size = HR_DECIMAL_BYTES; size > 1; size--)
        if (number[size - 1] != sign || ((number[size - 2] ^ sign) & 0x80)) break;
    return size;
}

#endif
