/* What decode.h and encode.h share: numbers of `layout.py`, and varints. These are the inner loops of the Avro
   codec, without Python; `reference/` defines their behaviour.

   A function returns 0, the code of an error of the row (> 0), or a reason to give up on the batch (< 0). After an error
   `at` is where the value that could not be decoded begins. */

#ifndef HEADRACE_AVRO_CODEC_H
#define HEADRACE_AVRO_CODEC_H

#include "columns.h"
#include "decimals.h"

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

#define HR_ZERO_BYTE_ITEMS_MAX 4096

/* ---- varints ---- */

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

#endif
