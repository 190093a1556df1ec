/* What decode.h and encode.h share: numbers of `layout.py`, nodes of plans, varints, UTF-8 and decimals. These are the inner
   loops of the Avro codec, without Python; `reference/` defines their behaviour.

   A function returns 0, the code of an error of the row (> 0), or a reason to give up on the batch (< 0). After an error
   `at` is where the value that could not be decoded begins. */

#ifndef HEADRACE_AVRO_CODEC_H
#define HEADRACE_AVRO_CODEC_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_NULL, KIND_BOOLEAN, KIND_FIXED, KIND_BINARY, KIND_LIST, KIND_STRUCT };

enum {
    OP_NULL, OP_BOOLEAN, OP_INT, OP_LONG, OP_FLOAT, OP_DOUBLE, OP_INT_TO_LONG, OP_LONG_TO_FLOAT, OP_LONG_TO_DOUBLE,
    OP_FLOAT_TO_DOUBLE, OP_BYTES, OP_STRING, OP_FIXED, OP_ENUM, OP_DECIMAL_BYTES, OP_DECIMAL_FIXED, OP_RECORD,
    OP_ARRAY, OP_MAP, OP_UNION, OP_MEMBER, OP_CONSTANT, OP_FAIL, OP_SKIP_FIXED, OP_SKIP_LONG, OP_SKIP_BYTES,
    OP_SKIP_RECORD, OP_SKIP_ARRAY, OP_SKIP_MAP, OP_SKIP_UNION
};

enum {
    ENCODE_NULL, ENCODE_BOOLEAN, ENCODE_INT, ENCODE_LONG, ENCODE_FLOAT, ENCODE_DOUBLE, ENCODE_FLOAT_TO_DOUBLE,
    ENCODE_BYTES, ENCODE_STRING, ENCODE_FIXED, ENCODE_ENUM, ENCODE_DECIMAL_BYTES, ENCODE_DECIMAL_FIXED, ENCODE_RECORD,
    ENCODE_ARRAY, ENCODE_MAP, ENCODE_NULLABLE, ENCODE_MEMBERS, ENCODE_BRANCH, ENCODE_CONSTANT
};

enum {
    ERROR_TRUNCATED = 1, ERROR_INTEGER, ERROR_LENGTH, ERROR_COUNT, ERROR_BRANCH, ERROR_SYMBOL, ERROR_BOOLEAN, ERROR_UTF8,
    ERROR_DECIMAL, ERROR_UNRESOLVED, ERROR_NULL, ERROR_SIZE, ERROR_MEMBERS, ERROR_SKIP
};

enum { FATAL_MEMORY = -1, FATAL_TOO_LARGE = -2 };

#define HR_ZERO_BYTE_ITEMS_MAX 4096
#define HR_DECIMAL_BYTES 32
#define HR_TRY(call) do { int hr_code_ = (call); if (__builtin_expect(hr_code_ != 0, 0)) return hr_code_; } while (0)
#define HR_LIKELY(x) __builtin_expect(!!(x), 1)
#define HR_UNLIKELY(x) __builtin_expect(!!(x), 0)

typedef struct { const uint8_t *data; int64_t size; } hr_constant;

typedef struct {
    int32_t op, column, child_count;
    int64_t size, multiplier, divisor;
    int32_t *children;
} hr_node;

/* ---- varints, UTF-8, decimals ---- */

static inline int hr_varint(const uint8_t **at, const uint8_t *end, int64_t *value) {
    const uint8_t *p = *at;
    uint64_t bits;
    if (HR_LIKELY(p < end && *p < 0x80)) {
        bits = *p++;
    } else {
        int shift = 0;
        bits = 0;
        for (;;) {
            uint8_t byte;
            if (HR_UNLIKELY(p == end)) return ERROR_TRUNCATED;
            byte = *p++;
            if (HR_UNLIKELY(shift == 63 && byte > 1)) return ERROR_INTEGER;
            bits |= (uint64_t)(byte & 0x7F) << shift;
            if (byte < 0x80) break;
            shift += 7;
        }
    }
    *value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
    *at = p;
    return 0;
}

static int hr_is_utf8(const uint8_t *p, int64_t size) {
    const uint8_t *end = p + size;
    while (p < end) {
        uint8_t lead;
        while (end - p >= 8) {
            uint64_t word;
            memcpy(&word, p, 8);
            if (word & 0x8080808080808080ULL) break;
            p += 8;
        }
        if (p == end) break;
        lead = *p;
        if (lead < 0x80) {
            p++;
        } else if (lead < 0xC2) {
            return 0;
        } else if (lead < 0xE0) {
            if (end - p < 2 || (p[1] & 0xC0) != 0x80) return 0;
            p += 2;
        } else if (lead < 0xF0) {
            if (end - p < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80) return 0;
            if ((lead == 0xE0 && p[1] < 0xA0) || (lead == 0xED && p[1] > 0x9F)) return 0;
            p += 3;
        } else if (lead < 0xF5) {
            if (end - p < 4 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80 || (p[3] & 0xC0) != 0x80) return 0;
            if ((lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] > 0x8F)) return 0;
            p += 4;
        } else {
            return 0;
        }
    }
    return 1;
}

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

/* ---- memory ---- */

static int hr_resize(void **memory, int64_t bytes) {
    void *larger = realloc(*memory, bytes > 0 ? (size_t)bytes : 1);
    if (larger == NULL) return FATAL_MEMORY;
    *memory = larger;
    return 0;
}

#endif
