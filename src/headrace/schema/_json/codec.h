/* What decode.h and encode.h share: numbers of `layout.py`, and the scanner of JSON text (RFC 8259). `reference/` defines
   its behaviour.

   A function returns 0, the code of an error of the row (> 0), or a reason to give up on the batch (< 0). After an error
   `at` is where the token begins that is wrong. */

#ifndef HEADRACE_JSON_CODEC_H
#define HEADRACE_JSON_CODEC_H

#include "columns.h"

enum { TOKEN_OBJECT, TOKEN_ARRAY, TOKEN_STRING, TOKEN_NUMBER, TOKEN_BOOLEAN, TOKEN_NULL, TOKEN_NONE };

enum {
    OP_ROOT, OP_NULL, OP_BOOLEAN, OP_INTEGER, OP_NUMBER, OP_DECIMAL, OP_STRING, OP_BYTES, OP_TEXT, OP_OBJECT, OP_ARRAY,
    OP_MAP, OP_UNION, OP_MEMBER
};

enum {
    ENCODE_NULL, ENCODE_BOOLEAN, ENCODE_INTEGER, ENCODE_NUMBER, ENCODE_DECIMAL, ENCODE_STRING, ENCODE_BYTES, ENCODE_TEXT,
    ENCODE_OBJECT, ENCODE_PROPERTY, ENCODE_CONSTANT, ENCODE_ARRAY, ENCODE_MAP, ENCODE_NULLABLE, ENCODE_MEMBERS
};

enum { ON_NULL_FAIL, ON_NULL_OMIT, ON_NULL_WRITE };

enum {
    ERROR_TRUNCATED = 1, ERROR_SYNTAX, ERROR_TYPE, ERROR_INTEGER, ERROR_NUMBER, ERROR_DECIMAL, ERROR_UTF8, ERROR_ESCAPE,
    ERROR_BASE64, ERROR_NULL, ERROR_REQUIRED, ERROR_MISSING, ERROR_DEPTH, ERROR_TRAILING, ERROR_MEMBERS, ERROR_SKIP,
    ERROR_REPEATED, ERROR_VALIDATION
};

#define HR_SKIP_DEPTH_MAX 256
#define HR_NUMBER_CHARS_MAX 2000
#define HR_MISSING_MAX (1 << 16)
#define HR_MISSING_PER_BYTE_MAX 32
#define HR_REPEATED_PER_BYTE_MAX 8
#define HR_NULLABLE 1
#define HR_PLAIN_NAMES 2
#define HR_MISSING_NULL (-1)

static inline int hr_token(uint8_t c) {
    switch (c) {
    case '{': return TOKEN_OBJECT;
    case '[': return TOKEN_ARRAY;
    case '"': return TOKEN_STRING;
    case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        return TOKEN_NUMBER;
    case 't': case 'f': return TOKEN_BOOLEAN;
    case 'n': return TOKEN_NULL;
    }
    return TOKEN_NONE;
}

static inline void hr_skip_space(const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at;
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    *at = p;
}

/* Read a character that must follow, after white space. */
static inline int hr_expect(const uint8_t **at, const uint8_t *end, uint8_t c) {
    hr_skip_space(at, end);
    if (HR_UNLIKELY(*at == end)) return ERROR_TRUNCATED;
    if (HR_UNLIKELY(**at != c)) return ERROR_SYNTAX;
    ++*at;
    return 0;
}

static int hr_scan_literal(const uint8_t **at, const uint8_t *end, const char *literal, int64_t size) {
    int64_t left = end - *at;
    if (memcmp(*at, literal, (size_t)(left < size ? left : size)) != 0) return ERROR_SYNTAX;
    if (left < size) return ERROR_TRUNCATED;
    *at += size;
    return 0;
}

static inline int hr_scan_null(const uint8_t **at, const uint8_t *end) { return hr_scan_literal(at, end, "null", 4); }

static int hr_scan_boolean(const uint8_t **at, const uint8_t *end) {
    return **at == 't' ? hr_scan_literal(at, end, "true", 4) : hr_scan_literal(at, end, "false", 5);
}

/* ---- strings ---- */

typedef struct { const uint8_t *data; int64_t size; int is_escaped; } hr_string;

#define HR_ONES 0x0101010101010101ULL
#define HR_HIGHS 0x8080808080808080ULL

/* Return a bit for the first of eight bytes that is a quote, a backslash or a control character; those above it may be
   wrong. 0 if there is none. */
static inline uint64_t hr_special_bits(uint64_t word) {
    uint64_t quote = word ^ (HR_ONES * '"'), slash = word ^ (HR_ONES * '\\');
    return (((word - HR_ONES * 0x20) & ~word) | ((quote - HR_ONES) & ~quote) | ((slash - HR_ONES) & ~slash)) & HR_HIGHS;
}

/* Read a string whose quote is at `at`; it is UTF-8, and its escapes are not yet checked. */
static int hr_scan_string(const uint8_t **at, const uint8_t *end, hr_string *string) {
    const uint8_t *p = *at + 1, *start = p;
    uint64_t high = 0;
    string->is_escaped = 0;
    for (;;) {
        while (end - p >= 8) {
            uint64_t word, special;
            memcpy(&word, p, 8);
            special = hr_special_bits(word);
            high |= word & HR_HIGHS;
            if (special) {
                p += __builtin_ctzll(special) >> 3;
                break;
            }
            p += 8;
        }
        if (HR_UNLIKELY(p == end)) return ERROR_TRUNCATED;
        if (*p == '"') break;
        if (*p == '\\') {
            if (end - p < 2) return ERROR_TRUNCATED;
            string->is_escaped = 1;
            high |= p[1] & 0x80;
            p += 2;
            continue;
        }
        if (HR_UNLIKELY(*p < 0x20)) return ERROR_SYNTAX;
        high |= *p++ & 0x80;
    }
    if (high && !hr_is_utf8(start, p - start)) return ERROR_UTF8;
    string->data = start;
    string->size = p - start;
    *at = p + 1;
    return 0;
}

static int hr_hex4(const uint8_t *p, const uint8_t *end, uint32_t *value) {
    int i;
    if (end - p < 4) return 0;
    *value = 0;
    for (i = 0; i < 4; i++) {
        uint8_t c = p[i];
        uint32_t digit;
        if (c >= '0' && c <= '9') digit = c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') digit = (c | 0x20) - 'a' + 10u;
        else return 0;
        *value = *value << 4 | digit;
    }
    return 1;
}

static uint8_t *hr_put_utf8(uint8_t *out, uint32_t code) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *out++ = (uint8_t)(0xF0 | code >> 18);
        *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return out;
}

/* Resolve escapes; the result is not longer. With `out` NULL, only check them. Half a surrogate pair is an error. */
static int hr_unescape(const hr_string *string, uint8_t *out, int64_t *size) {
    const uint8_t *p = string->data, *end = p + string->size;
    uint8_t *begin = out, sink[4];
    while (p < end) {
        uint32_t code, low;
        uint8_t c;
        if (*p != '\\') {
            if (out) *out++ = *p;
            p++;
            continue;
        }
        c = p[1];
        p += 2;
        switch (c) {
        case '"': case '\\': case '/': break;
        case 'b': c = '\b'; break;
        case 'f': c = '\f'; break;
        case 'n': c = '\n'; break;
        case 'r': c = '\r'; break;
        case 't': c = '\t'; break;
        case 'u':
            if (!hr_hex4(p, end, &code)) return ERROR_ESCAPE;
            p += 4;
            if (code >= 0xD800 && code < 0xE000) {
                if (code >= 0xDC00 || end - p < 6 || p[0] != '\\' || p[1] != 'u') return ERROR_ESCAPE;
                if (!hr_hex4(p + 2, end, &low) || low < 0xDC00 || low >= 0xE000) return ERROR_ESCAPE;
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                p += 6;
            }
            if (out) out = hr_put_utf8(out, code);
            else hr_put_utf8(sink, code);
            continue;
        default: return ERROR_ESCAPE;
        }
        if (out) *out++ = c;
    }
    if (out) *size = out - begin;
    return 0;
}

/* ---- numbers ---- */

typedef struct {
    const uint8_t *start;
    int64_t size;
    uint64_t mantissa;   /* the first 19 digits, from the first that is not 0 */
    int64_t exponent;    /* the value is mantissa * 10^exponent, and more if it is not exact */
    int64_t last_exponent;  /* of the last digit that is written */
    int is_negative, is_exact;
} hr_number;

#define HR_EXPONENT_MAX 100000

static int hr_scan_number(const uint8_t **at, const uint8_t *end, hr_number *number) {
    const uint8_t *p = *at;
    uint64_t mantissa = 0;
    int64_t exponent = 0, fraction = 0;
    int digits = 0, is_exact = 1;
    number->start = p;
    number->is_negative = *p == '-';
    p += number->is_negative;
    if (HR_UNLIKELY(p == end)) return ERROR_TRUNCATED;
    if (HR_UNLIKELY(*p < '0' || *p > '9')) return ERROR_SYNTAX;
    if (*p == '0') {
        p++;
    } else {
        for (; p < end && *p >= '0' && *p <= '9'; p++) {
            if (HR_LIKELY(digits < 19)) {
                mantissa = mantissa * 10 + (*p - '0');
                digits++;
            } else {
                is_exact &= *p == '0';
                exponent++;
            }
        }
    }
    if (p < end && *p == '.') {
        p++;
        if (HR_UNLIKELY(p == end)) return ERROR_TRUNCATED;
        if (HR_UNLIKELY(*p < '0' || *p > '9')) return ERROR_SYNTAX;
        for (; p < end && *p >= '0' && *p <= '9'; p++, fraction++) {
            if (HR_LIKELY(digits < 19)) {
                mantissa = mantissa * 10 + (*p - '0');
                digits += mantissa != 0;
                exponent--;
            } else {
                is_exact &= *p == '0';
            }
        }
    }
    number->last_exponent = -fraction;
    if (p < end && (*p | 0x20) == 'e') {
        int64_t written = 0;
        int is_negative = 0;
        p++;
        if (p < end && (*p == '+' || *p == '-')) is_negative = *p++ == '-';
        if (HR_UNLIKELY(p == end)) return ERROR_TRUNCATED;
        if (HR_UNLIKELY(*p < '0' || *p > '9')) return ERROR_SYNTAX;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if (written < HR_EXPONENT_MAX) written = written * 10 + (*p - '0');
        if (written > HR_EXPONENT_MAX) written = HR_EXPONENT_MAX;
        if (is_negative) written = -written;
        exponent += written;
        number->last_exponent += written;
    }
    number->size = p - *at;
    if (HR_UNLIKELY(number->size > HR_NUMBER_CHARS_MAX)) return ERROR_NUMBER;
    number->mantissa = mantissa;
    number->exponent = exponent;
    number->is_exact = is_exact;
    *at = p;
    return 0;
}

/* ---- values of any shape ---- */

/* Skip a value, and check its syntax. */
static int hr_skip_value(const uint8_t **at, const uint8_t *end) {
    uint8_t is_object[HR_SKIP_DEPTH_MAX];
    int depth = 0;
    hr_string string;
    hr_number number;
    for (;;) {
        /* A value. */
        hr_skip_space(at, end);
        if (HR_UNLIKELY(*at == end)) return ERROR_TRUNCATED;
        switch (hr_token(**at)) {
        case TOKEN_OBJECT: case TOKEN_ARRAY:
            if (depth == HR_SKIP_DEPTH_MAX) return ERROR_DEPTH;
            is_object[depth] = **at == '{';
            ++*at;
            hr_skip_space(at, end);
            if (*at == end) return ERROR_TRUNCATED;
            if (**at == (is_object[depth] ? '}' : ']')) {
                ++*at;
                break;
            }
            depth++;
            if (is_object[depth - 1]) goto key;
            continue;
        case TOKEN_STRING: {
            const uint8_t *start = *at;
            HR_TRY(hr_scan_string(at, end, &string));
            if (string.is_escaped && hr_unescape(&string, NULL, NULL)) {
                *at = start;
                return ERROR_ESCAPE;
            }
            break;
        }
        case TOKEN_NUMBER: HR_TRY(hr_scan_number(at, end, &number)); break;
        case TOKEN_BOOLEAN: HR_TRY(hr_scan_boolean(at, end)); break;
        case TOKEN_NULL: HR_TRY(hr_scan_null(at, end)); break;
        default: return ERROR_SYNTAX;
        }
        /* What follows a value. */
        for (;;) {
            if (depth == 0) return 0;
            hr_skip_space(at, end);
            if (*at == end) return ERROR_TRUNCATED;
            if (**at == ',') break;
            if (**at != (is_object[depth - 1] ? '}' : ']')) return ERROR_SYNTAX;
            ++*at;
            depth--;
        }
        ++*at;
        if (!is_object[depth - 1]) continue;
    key:
        hr_skip_space(at, end);
        if (*at == end) return ERROR_TRUNCATED;
        if (**at != '"') return ERROR_SYNTAX;
        {
            const uint8_t *start = *at;
            HR_TRY(hr_scan_string(at, end, &string));
            if (string.is_escaped && hr_unescape(&string, NULL, NULL)) {
                *at = start;
                return ERROR_ESCAPE;
            }
        }
        HR_TRY(hr_expect(at, end, ':'));
    }
}

/* ---- decimals: magnitudes of 256 bits ---- */

typedef unsigned __int128 hr_uint128;

/* Multiply by 10 and add a digit; returns whether the result has more than 256 bits. */
static int hr_times_ten(uint64_t limbs[4], uint64_t digit) {
    hr_uint128 carry = digit;
    int i;
    for (i = 0; i < 4; i++) {
        carry += (hr_uint128)limbs[i] * 10;
        limbs[i] = (uint64_t)carry;
        carry >>= 64;
    }
    return carry != 0;
}

static void hr_negate(uint64_t limbs[4]) {
    int i, carry = 1;
    for (i = 0; i < 4; i++) {
        limbs[i] = ~limbs[i] + (uint64_t)carry;
        carry = carry && limbs[i] == 0;
    }
}

/* Whether a magnitude is below a limit, which is a constant of 32 bytes. */
static int hr_is_below(const uint64_t limbs[4], const uint8_t *limit) {
    uint64_t other[4];
    int i;
    memcpy(other, limit, 32);
    for (i = 3; i >= 0; i--)
        if (limbs[i] != other[i]) return limbs[i] < other[i];
    return 0;
}

#endif
