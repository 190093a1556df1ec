/* From columns to JSON text, by a plan. */

#ifndef HEADRACE_JSON_ENCODE_H
#define HEADRACE_JSON_ENCODE_H

#include "codec.h"
#include "floats.h"
#include "inputs.h"

static int hr_encode(hr_encoder *e, int32_t index, int64_t row);

/* The caller has reserved the room. */
static inline void hr_put_char(hr_encoder *e, uint8_t c) { e->out[e->size++] = c; }

static inline int hr_put_text(hr_encoder *e, const char *text) {
    return hr_put_bytes(e, (const uint8_t *)text, (int64_t)strlen(text));
}

/* The bytes of a value in a binary or fixed-size column. */
static inline void hr_bytes_at(const hr_input *column, int64_t row, const uint8_t **data, int64_t *size) {
    if (column->kind == KIND_FIXED) {
        *size = column->width;
        *data = column->data + (column->first + row) * column->width;
        return;
    }
    *data = column->data + column->offsets[column->first + row];
    *size = column->offsets[column->first + row + 1] - column->offsets[column->first + row];
}

/* ---- scalars ---- */

static int hr_encode_integer(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int64_t value;
    if (hr_read_integer(column, row, &value)) return ERROR_INTEGER;
    if (node->multiplier != 1 && __builtin_mul_overflow(value, node->multiplier, &value)) return ERROR_INTEGER;
    if (node->divisor != 1) value = value / node->divisor - (value % node->divisor < 0);
    if (node->size < 64 && (value >> (node->size - 1)) != (value < 0 ? -1 : 0)) return ERROR_INTEGER;
    HR_TRY(hr_reserve(e, 21));
    if (value < 0) hr_put_char(e, '-');
    e->size += hr_put_digits(e->out + e->size, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
    return 0;
}

static int hr_encode_number(hr_encoder *e, const hr_input *column, int64_t row) {
    int count;
    HR_TRY(hr_reserve(e, HR_FLOAT_CHARS_MAX));
    count = hr_put_float(e->out + e->size, column->data + (column->first + row) * column->width, column->width);
    e->size += count;
    return count ? 0 : ERROR_NUMBER;
}

static int hr_encode_decimal(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    const uint8_t *p = column->data + (column->first + row) * column->width;
    uint8_t digits[96];
    uint64_t limbs[4];
    int is_negative = p[column->width - 1] >> 7, at = (int)sizeof digits, i;
    memset(limbs, is_negative ? 0xFF : 0, 32);
    memcpy(limbs, p, (size_t)column->width);
    if (is_negative) hr_negate(limbs);
    if (!hr_is_below(limbs, e->constants[node->children[0]].data)) return ERROR_DECIMAL;
    while (limbs[0] | limbs[1] | limbs[2] | limbs[3]) {
        hr_uint128 rest = 0;
        for (i = 3; i >= 0; i--) {
            rest = rest << 64 | limbs[i];
            limbs[i] = (uint64_t)(rest / 10);
            rest %= 10;
        }
        digits[--at] = (uint8_t)('0' + (int)rest);
    }
    while ((int)sizeof digits - at <= node->size) digits[--at] = '0';  /* a digit before the point */
    HR_TRY(hr_reserve(e, (int64_t)sizeof digits + 2));
    if (is_negative) hr_put_char(e, '-');
    for (; at < (int)sizeof digits; at++) {
        if ((int)sizeof digits - at == node->size) hr_put_char(e, '.');
        hr_put_char(e, digits[at]);
    }
    return 0;
}

/* Whether a byte is written as it is: not a control character, quote or backslash. */
static inline int hr_is_plain(uint8_t c) { return c >= 0x20 && c != '"' && c != '\\'; }

static int hr_encode_string(hr_encoder *e, const uint8_t *p, int64_t size) {
    static const char hex[] = "0123456789abcdef";
    const uint8_t *end = p + size;
    if (!hr_is_utf8(p, size)) return ERROR_UTF8;
    HR_TRY(hr_reserve(e, size + 2));
    hr_put_char(e, '"');
    for (;;) {
        const uint8_t *start = p;
        uint8_t c;
        while (end - p >= 8) {
            uint64_t word, special;
            memcpy(&word, p, 8);
            special = hr_special_bits(word);
            if (special) {
                p += __builtin_ctzll(special) >> 3;
                break;
            }
            p += 8;
        }
        while (p < end && hr_is_plain(*p)) p++;
        HR_TRY(hr_put_bytes(e, start, p - start));
        HR_TRY(hr_reserve(e, 7));
        if (p == end) break;
        c = *p++;
        hr_put_char(e, '\\');
        switch (c) {
        case '"': case '\\': hr_put_char(e, c); break;
        case '\b': hr_put_char(e, 'b'); break;
        case '\f': hr_put_char(e, 'f'); break;
        case '\n': hr_put_char(e, 'n'); break;
        case '\r': hr_put_char(e, 'r'); break;
        case '\t': hr_put_char(e, 't'); break;
        default:
            memcpy(e->out + e->size, "u00", 3);
            e->out[e->size + 3] = (uint8_t)hex[c >> 4];
            e->out[e->size + 4] = (uint8_t)hex[c & 15];
            e->size += 5;
        }
    }
    hr_put_char(e, '"');
    return 0;
}

static int hr_encode_base64(hr_encoder *e, const uint8_t *p, int64_t size) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int64_t i;
    HR_TRY(hr_reserve(e, (size + 2) / 3 * 4 + 2));
    hr_put_char(e, '"');
    for (i = 0; i < size; i += 3) {
        int64_t left = size - i;
        uint32_t bits = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (left > 2 ? p[i + 2] : 0);
        hr_put_char(e, (uint8_t)alphabet[bits >> 18]);
        hr_put_char(e, (uint8_t)alphabet[bits >> 12 & 63]);
        hr_put_char(e, left > 1 ? (uint8_t)alphabet[bits >> 6 & 63] : '=');
        hr_put_char(e, left > 2 ? (uint8_t)alphabet[bits & 63] : '=');
    }
    hr_put_char(e, '"');
    return 0;
}

/* Copy JSON text, if it is one value. */
static int hr_encode_text(hr_encoder *e, const hr_node *node, const uint8_t *p, int64_t size) {
    const uint8_t *at = p, *end = p + size, *start;
    hr_skip_space(&at, end);
    start = at;
    HR_TRY(hr_skip_value(&at, end));
    if (!(node->size >> hr_token(*start) & 1)) return ERROR_TYPE;
    size = at - start;
    hr_skip_space(&at, end);
    return at == end ? hr_put_bytes(e, start, size) : ERROR_TRAILING;
}

/* ---- objects, arrays, members ---- */

static int hr_encode_object(hr_encoder *e, const hr_node *node, int64_t row) {
    int32_t i;
    HR_TRY(hr_reserve(e, 2));
    hr_put_char(e, '{');
    for (i = 0; i < node->child_count; i++) {
        int64_t before = e->size;
        HR_TRY(hr_encode(e, node->children[i], row));
        if (e->size > before) {
            HR_TRY(hr_reserve(e, 1));
            hr_put_char(e, ',');
        }
    }
    if (e->out[e->size - 1] == ',') e->size--;
    HR_TRY(hr_reserve(e, 1));
    hr_put_char(e, '}');
    return 0;
}

static int hr_encode_items(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int64_t start = column->offsets[column->first + row], end = column->offsets[column->first + row + 1], item;
    int is_map = node->op == ENCODE_MAP;
    HR_TRY(hr_reserve(e, 2));
    hr_put_char(e, is_map ? '{' : '[');
    for (item = start; item < end; item++) {
        if (item > start) {
            HR_TRY(hr_reserve(e, 1));
            hr_put_char(e, ',');
        }
        HR_TRY(hr_encode(e, node->children[0], item));
        if (is_map) {
            HR_TRY(hr_reserve(e, 1));
            hr_put_char(e, ':');
            HR_TRY(hr_encode(e, node->children[1], item));
        }
    }
    HR_TRY(hr_reserve(e, 1));
    hr_put_char(e, is_map ? '}' : ']');
    return 0;
}

static int hr_encode_members(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int32_t chosen = hr_chosen_member(e, node, column, row);
    if (chosen == -2) return ERROR_MEMBERS;
    if (chosen >= 0) return hr_encode(e, chosen, row);
    return node->size ? hr_put_text(e, "null") : ERROR_NULL;
}

static int hr_encode_property(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    const hr_constant *name = &e->constants[node->size];
    if (column->kind == KIND_NULL || hr_is_null(column, row)) {
        if (node->multiplier == ON_NULL_FAIL) return ERROR_NULL;
        if (node->multiplier == ON_NULL_OMIT) return 0;
        HR_TRY(hr_put_bytes(e, name->data, name->size));
        return hr_put_text(e, "null");
    }
    HR_TRY(hr_put_bytes(e, name->data, name->size));
    return hr_encode(e, node->children[0], row);
}

static int hr_encode_node(hr_encoder *e, const hr_node *node, int64_t row) {
    const hr_input *column = &e->columns[node->column];
    const uint8_t *data;
    int64_t size;
    switch (node->op) {
    case ENCODE_NULL: return hr_put_text(e, "null");
    case ENCODE_CONSTANT: return hr_put_bytes(e, e->constants[node->size].data, e->constants[node->size].size);
    case ENCODE_PROPERTY: return hr_encode_property(e, node, column, row);
    case ENCODE_MEMBERS: return hr_encode_members(e, node, column, row);
    case ENCODE_NULLABLE:
        return hr_is_null(column, row) ? hr_put_text(e, "null") : hr_encode(e, node->children[0], row);
    }
    if (HR_UNLIKELY(hr_is_null(column, row))) return ERROR_NULL;
    switch (node->op) {
    case ENCODE_BOOLEAN:
        row += column->first;
        return hr_put_text(e, column->data[row >> 3] >> (row & 7) & 1 ? "true" : "false");
    case ENCODE_INTEGER: return hr_encode_integer(e, node, column, row);
    case ENCODE_NUMBER: return hr_encode_number(e, column, row);
    case ENCODE_DECIMAL: return hr_encode_decimal(e, node, column, row);
    case ENCODE_STRING: case ENCODE_BYTES: case ENCODE_TEXT:
        hr_bytes_at(column, row, &data, &size);
        if (node->op == ENCODE_STRING) return hr_encode_string(e, data, size);
        return node->op == ENCODE_BYTES ? hr_encode_base64(e, data, size) : hr_encode_text(e, node, data, size);
    case ENCODE_OBJECT: return hr_encode_object(e, node, row);
    case ENCODE_ARRAY: case ENCODE_MAP: return hr_encode_items(e, node, column, row);
    }
    return ERROR_TYPE;
}

static int hr_encode(hr_encoder *e, int32_t index, int64_t row) {
    int code = hr_encode_node(e, &e->nodes[index], row);
    if (HR_UNLIKELY(code != 0) && e->failed_node < 0) e->failed_node = index;
    return code;
}

#endif
