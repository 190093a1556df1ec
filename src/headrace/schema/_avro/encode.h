/* From columns to bytes, by a plan. */

#ifndef HEADRACE_AVRO_ENCODE_H
#define HEADRACE_AVRO_ENCODE_H

#include "codec.h"
#include "inputs.h"

/* The caller has reserved 10 bytes. */
static inline void hr_put_varint(hr_encoder *e, int64_t value) {
    uint64_t bits = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    uint8_t *p = e->out + e->size;
    while (bits >= 0x80) {
        *p++ = (uint8_t)(bits | 0x80);
        bits >>= 7;
    }
    *p++ = (uint8_t)bits;
    e->size = p - e->out;
}

static int hr_encode_decimal(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    uint8_t number[HR_DECIMAL_BYTES];
    const uint8_t *p = column->data + (column->first + row) * column->width;
    uint8_t sign = p[column->width - 1] & 0x80 ? 0xFF : 0;
    int64_t size, i;
    hr_decimal_widen(p, column->width, number);
    if (!hr_decimal_fits(number, e->constants[node->children[0]].data)) return ERROR_DECIMAL;
    if (node->op == ENCODE_DECIMAL_BYTES) {
        size = hr_decimal_size(number);
        HR_TRY(hr_reserve(e, 10 + size));
        hr_put_varint(e, size);
    } else {
        size = node->size;
        HR_TRY(hr_reserve(e, size));
    }
    for (i = size - 1; i >= 0; i--) e->out[e->size++] = i < HR_DECIMAL_BYTES ? number[i] : sign;
    return 0;
}

static int hr_encode(hr_encoder *e, int32_t index, int64_t row);

static int hr_encode_items(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int64_t item = column->offsets[column->first + row], end = column->offsets[column->first + row + 1];
    int32_t i;
    HR_TRY(hr_reserve(e, 20));
    if (end > item) hr_put_varint(e, end - item);
    for (; item < end; item++)
        for (i = 0; i < node->child_count; i++) HR_TRY(hr_encode(e, node->children[i], item));
    HR_TRY(hr_reserve(e, 10));
    hr_put_varint(e, 0);
    return 0;
}

static int hr_encode_members(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int32_t chosen = hr_chosen_member(e, node, column, row);
    if (chosen == -2) return ERROR_MEMBERS;
    if (chosen >= 0) return hr_encode(e, chosen, row);
    if (node->size < 0) return ERROR_NULL;
    HR_TRY(hr_reserve(e, 10));
    hr_put_varint(e, node->size);
    return 0;
}

static int hr_encode_node(hr_encoder *e, const hr_node *node, int64_t row) {
    const hr_input *column = node->column >= 0 ? &e->columns[node->column] : NULL;
    const uint8_t *data;
    int64_t value, size, start;
    int32_t i;
    switch (node->op) {
    case ENCODE_NULL:
        return 0;
    case ENCODE_MEMBERS:
        return hr_encode_members(e, node, column, row);
    case ENCODE_CONSTANT:
        return hr_put_bytes(e, e->constants[node->size].data, e->constants[node->size].size);
    case ENCODE_NULLABLE:
        HR_TRY(hr_reserve(e, 10));
        if (hr_is_null(column, row)) {
            hr_put_varint(e, node->size);
            return 0;
        }
        hr_put_varint(e, node->multiplier);
        return hr_encode(e, node->children[0], row);
    }
    if (HR_UNLIKELY(hr_is_null(column, row))) return ERROR_NULL;
    switch (node->op) {
    case ENCODE_BOOLEAN:
        HR_TRY(hr_reserve(e, 1));
        value = column->first + row;
        e->out[e->size++] = column->data[value >> 3] >> (value & 7) & 1;
        return 0;
    case ENCODE_INT: case ENCODE_LONG:
        if (hr_read_integer(column, row, &value)) return ERROR_INTEGER;
        if (node->multiplier != 1 && __builtin_mul_overflow(value, node->multiplier, &value)) return ERROR_INTEGER;
        if (node->divisor != 1) value = value / node->divisor - (value % node->divisor < 0);
        if (node->op == ENCODE_INT && value != (int32_t)value) return ERROR_INTEGER;
        HR_TRY(hr_reserve(e, 10));
        hr_put_varint(e, value);
        return 0;
    case ENCODE_FLOAT_TO_DOUBLE: {
        float narrow;
        double wide;
        memcpy(&narrow, column->data + (column->first + row) * 4, 4);
        wide = narrow;
        return hr_put_bytes(e, (const uint8_t *)&wide, 8);
    }
    case ENCODE_BYTES: case ENCODE_STRING: case ENCODE_ENUM:
        start = column->offsets[column->first + row];
        size = column->offsets[column->first + row + 1] - start;
        data = column->data + start;
        if (node->op == ENCODE_ENUM) {
            for (i = 0; i < node->child_count; i++) {
                const hr_constant *symbol = &e->constants[node->children[i]];
                if (symbol->size == size && memcmp(symbol->data, data, (size_t)size) == 0) break;
            }
            if (i == node->child_count) return ERROR_SYMBOL;
            HR_TRY(hr_reserve(e, 10));
            hr_put_varint(e, i);
            return 0;
        }
        if (node->op == ENCODE_STRING && !hr_is_utf8(data, size)) return ERROR_UTF8;
        HR_TRY(hr_reserve(e, 10 + size));
        hr_put_varint(e, size);
        if (size) memcpy(e->out + e->size, data, (size_t)size);
        e->size += size;
        return 0;
    case ENCODE_FLOAT: case ENCODE_DOUBLE: case ENCODE_FIXED:
        if (column->kind == KIND_FIXED)
            return hr_put_bytes(e, column->data + (column->first + row) * column->width, column->width);
        start = column->offsets[column->first + row];
        size = column->offsets[column->first + row + 1] - start;
        if (size != node->size) return ERROR_SIZE;
        return hr_put_bytes(e, column->data + start, size);
    case ENCODE_DECIMAL_BYTES: case ENCODE_DECIMAL_FIXED:
        return hr_encode_decimal(e, node, column, row);
    case ENCODE_RECORD:
        for (i = 0; i < node->child_count; i++) HR_TRY(hr_encode(e, node->children[i], row));
        return 0;
    case ENCODE_ARRAY: case ENCODE_MAP:
        return hr_encode_items(e, node, column, row);
    case ENCODE_BRANCH:
        HR_TRY(hr_reserve(e, 10));
        hr_put_varint(e, node->size);
        return hr_encode(e, node->children[0], row);
    }
    return ERROR_UNRESOLVED;
}

static int hr_encode(hr_encoder *e, int32_t index, int64_t row) {
    int code = hr_encode_node(e, &e->nodes[index], row);
    if (HR_UNLIKELY(code != 0) && e->failed_node < 0) e->failed_node = index;
    return code;
}

#endif
