/* From columns to bytes, by a plan. The size of a message is known after it is written: one byte is left for it, and what
   follows is moved if that is not enough. */

#ifndef HEADRACE_PROTOBUF_ENCODE_H
#define HEADRACE_PROTOBUF_ENCODE_H

#include "codec.h"
#include "inputs.h"

#define HR_VARINT_BYTES_MAX 10

static inline void hr_put_varint(hr_encoder *e, uint64_t value) {
    while (value > 0x7F) {
        e->out[e->size++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    e->out[e->size++] = (uint8_t)value;
}

/* Write a tag, and leave a byte for a size. */
static int hr_open(hr_encoder *e, uint32_t tag, int64_t *start) {
    HR_TRY(hr_reserve(e, HR_VARINT_BYTES_MAX + 1));
    hr_put_varint(e, tag);
    *start = e->size++;
    return 0;
}

/* Write the size of what follows `start`. */
static int hr_close(hr_encoder *e, int64_t start) {
    int64_t size = e->size - start - 1, end = e->size;
    int more = 0;
    uint64_t rest;
    if (HR_LIKELY(size < 0x80)) {
        e->out[start] = (uint8_t)size;
        return 0;
    }
    for (rest = (uint64_t)size >> 7; rest; rest >>= 7) more++;
    HR_TRY(hr_reserve(e, more));
    memmove(e->out + start + 1 + more, e->out + start + 1, (size_t)size);
    e->size = start;
    hr_put_varint(e, (uint64_t)size);
    e->size = end + more;
    return 0;
}

/* ---- numbers ---- */

static int hr_parse_int32(const uint8_t *text, int64_t size, int32_t *number) {
    int64_t value = 0, i = size > 0 && text[0] == '-' ? 1 : 0;
    int negative = (int)i;
    if (size - i < 1 || size - i > 10) return 0;
    for (; i < size; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        value = value * 10 + (text[i] - '0');
    }
    value = negative ? -value : value;
    *number = (int32_t)value;
    return value == (int32_t)value;
}

static int hr_enum_number(const hr_encoder *e, const hr_node *node, const uint8_t *text, int64_t size, uint64_t *value) {
    const hr_constant *numbers = &e->constants[node->children[0]];
    int32_t low = 1, high = node->child_count, number;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        const hr_constant *name = &e->constants[node->children[middle]];
        int64_t shorter = size < name->size ? size : name->size;
        int order = shorter ? memcmp(text, name->data, (size_t)shorter) : 0;
        if (order == 0) order = size < name->size ? -1 : size > name->size;
        if (order == 0) {
            memcpy(&number, numbers->data + 4 * (int64_t)(middle - 1), 4);
            *value = (uint64_t)(int64_t)number;
            return 0;
        }
        if (order > 0) low = middle + 1;
        else high = middle;
    }
    if (node->op == ENCODE_CLOSED_ENUM || !hr_parse_int32(text, size, &number)) return ERROR_SYMBOL;
    *value = (uint64_t)(int64_t)number;
    return 0;
}

static inline const uint8_t *hr_text(const hr_input *column, int64_t row, int64_t *size) {
    int32_t begin = column->offsets[column->first + row];
    *size = column->offsets[column->first + row + 1] - begin;
    return column->data + begin;
}

static int hr_uint64(const hr_input *column, int64_t row, uint64_t *value) {
    int64_t number;
    if (column->width >= 16) {  /* a decimal */
        const uint8_t *p = column->data + (column->first + row) * column->width;
        int32_t i;
        memcpy(value, p, 8);
        for (i = 8; i < column->width; i++)
            if (p[i]) return ERROR_RANGE;
        return 0;
    }
    if (column->width == 8 && !column->is_signed) {
        memcpy(value, column->data + (column->first + row) * 8, 8);
        return 0;
    }
    (void)hr_read_integer(column, row, &number);
    *value = (uint64_t)number;
    return number < 0 ? ERROR_RANGE : 0;
}

/* Read a number as the bits that are written: a varint, or the lower bytes of a fixed one. */
static inline int hr_number(const hr_encoder *e, const hr_node *node, int64_t row, uint64_t *value) {
    const hr_input *column = &e->columns[node->column];
    const uint8_t *p;
    int64_t number, size;
    switch (node->op) {
    case ENCODE_BOOLEAN:
        row += column->first;
        *value = column->data[row >> 3] >> (row & 7) & 1;
        return 0;
    case ENCODE_FLOAT: {
        uint32_t bits;
        memcpy(&bits, column->data + (column->first + row) * 4, 4);
        *value = bits;
        return 0;
    }
    case ENCODE_DOUBLE:
        memcpy(value, column->data + (column->first + row) * 8, 8);
        return 0;
    case ENCODE_FLOAT_TO_DOUBLE: {
        float narrow;
        double wide;
        memcpy(&narrow, column->data + (column->first + row) * 4, 4);
        wide = (double)narrow;
        memcpy(value, &wide, 8);
        return 0;
    }
    case ENCODE_UINT64:
        return hr_uint64(column, row, value);
    case ENCODE_ENUM: case ENCODE_CLOSED_ENUM:
        p = hr_text(column, row, &size);
        return hr_enum_number(e, node, p, size, value);
    }
    if (hr_read_integer(column, row, &number)) return ERROR_RANGE;
    switch (node->op) {
    case ENCODE_INT32: case ENCODE_SINT32:
        if (HR_UNLIKELY(number != (int32_t)number)) return ERROR_RANGE;
        break;
    case ENCODE_UINT32:
        if (HR_UNLIKELY(number != (int64_t)(uint32_t)number)) return ERROR_RANGE;
        break;
    }
    if (node->op == ENCODE_SINT32 || node->op == ENCODE_SINT64)
        *value = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    else
        *value = (uint64_t)number;
    return 0;
}

static int hr_encode_number(hr_encoder *e, const hr_node *node, int64_t row) {
    uint64_t value = 0;
    int presence = HR_PRESENCE(node);
    HR_TRY(hr_number(e, node, row, &value));
    if (presence == PRESENCE_IMPLICIT && value == 0) return 0;
    HR_TRY(hr_reserve(e, 2 * HR_VARINT_BYTES_MAX));
    if (presence != PRESENCE_PACKED) hr_put_varint(e, HR_TAG(node));
    switch (HR_WIRE(node)) {
    case WIRE_FIXED64:
        memcpy(e->out + e->size, &value, 8);
        e->size += 8;
        break;
    case WIRE_FIXED32:
        memcpy(e->out + e->size, &value, 4);
        e->size += 4;
        break;
    default:
        hr_put_varint(e, value);
    }
    return 0;
}

/* ---- times and decimals ---- */

static int hr_encode_time(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int64_t time, seconds, rest, start;
    memcpy(&time, column->data + (column->first + row) * 8, 8);
    seconds = time / node->multiplier;
    rest = time % node->multiplier;
    if (rest < 0 && !node->divisor) {
        seconds--;
        rest += node->multiplier;
    }
    rest *= 1000000000 / node->multiplier;
    HR_TRY(hr_open(e, HR_TAG(node), &start));
    HR_TRY(hr_reserve(e, 2 + 2 * HR_VARINT_BYTES_MAX));
    if (seconds) {
        hr_put_varint(e, 1 << 3 | WIRE_VARINT);
        hr_put_varint(e, (uint64_t)seconds);
    }
    if (rest) {
        hr_put_varint(e, 2 << 3 | WIRE_VARINT);
        hr_put_varint(e, (uint64_t)rest);
    }
    return hr_close(e, start);
}

/* How many decimal digits a number has: 1 for 0. */
static int hr_decimal_digits(const uint8_t *number) {
    uint32_t limbs[HR_DECIMAL_BYTES / 4];
    int i, digits = 0, is_negative = number[HR_DECIMAL_BYTES - 1] & 0x80, is_zero = 0;
    memcpy(limbs, number, HR_DECIMAL_BYTES);
    if (is_negative) {
        uint64_t carry = 1;
        for (i = 0; i < HR_DECIMAL_BYTES / 4; i++) {
            carry += (uint32_t)~limbs[i];
            limbs[i] = (uint32_t)carry;
            carry >>= 32;
        }
    }
    while (!is_zero) {
        uint64_t rest = 0;
        is_zero = 1;
        for (i = HR_DECIMAL_BYTES / 4 - 1; i >= 0; i--) {
            rest = rest << 32 | limbs[i];
            limbs[i] = (uint32_t)(rest / 10);
            rest %= 10;
            if (limbs[i]) is_zero = 0;
        }
        digits++;
    }
    return digits;
}

static int hr_encode_decimal(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    uint8_t number[HR_DECIMAL_BYTES];
    int64_t start, size, i;
    hr_decimal_widen(column->data + (column->first + row) * column->width, column->width, number);
    if (!hr_decimal_fits(number, e->constants[node->children[0]].data)) return ERROR_DECIMAL;
    size = hr_decimal_size(number);
    HR_TRY(hr_open(e, HR_TAG(node), &start));
    HR_TRY(hr_reserve(e, 4 + 3 * HR_VARINT_BYTES_MAX + size));
    hr_put_varint(e, 1 << 3 | WIRE_BYTES);
    hr_put_varint(e, (uint64_t)size);
    for (i = size - 1; i >= 0; i--) e->out[e->size++] = number[i];
    hr_put_varint(e, 2 << 3 | WIRE_VARINT);
    hr_put_varint(e, (uint64_t)hr_decimal_digits(number));
    if (node->multiplier) {
        hr_put_varint(e, 3 << 3 | WIRE_VARINT);
        hr_put_varint(e, (uint64_t)node->multiplier);
    }
    return hr_close(e, start);
}

/* ---- fields ---- */

static int hr_encode(hr_encoder *e, int32_t index, int64_t row);

static int hr_encode_list(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int64_t item = column->offsets[column->first + row], end = column->offsets[column->first + row + 1], start;
    if (item == end) return 0;
    if (node->op == ENCODE_LIST) {
        for (; item < end; item++) HR_TRY(hr_encode(e, node->children[0], item));
        return 0;
    }
    HR_TRY(hr_open(e, HR_TAG(node), &start));
    for (; item < end; item++) HR_TRY(hr_encode(e, node->children[0], item));
    return hr_close(e, start);
}

static int hr_encode_map(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int64_t item = column->offsets[column->first + row], end = column->offsets[column->first + row + 1], start;
    for (; item < end; item++) {
        HR_TRY(hr_open(e, HR_TAG(node), &start));
        HR_TRY(hr_encode(e, node->children[0], item));
        HR_TRY(hr_encode(e, node->children[1], item));
        HR_TRY(hr_close(e, start));
    }
    return 0;
}

static int hr_encode_oneof(hr_encoder *e, const hr_node *node, int64_t row) {
    int32_t i, count = 0;
    for (i = 0; i < node->child_count; i++)
        count += !hr_is_null(&e->columns[e->nodes[node->children[i]].column], row);
    return count > 1 ? ERROR_ONEOF : 0;
}

static int hr_encode_fields(hr_encoder *e, int32_t index, int64_t row) {
    const hr_node *node = &e->nodes[index];
    int32_t i;
    for (i = 0; i < node->child_count; i++) HR_TRY(hr_encode(e, node->children[i], row));
    return 0;
}

static inline int hr_encode_node(hr_encoder *e, const hr_node *node, int32_t index, int64_t row) {
    const hr_input *column = &e->columns[node->column];
    const uint8_t *data;
    int64_t size, start;
    if (node->op == ENCODE_FIELDS) return hr_encode_fields(e, index, row);
    if (node->op == ENCODE_ONEOF) return hr_encode_oneof(e, node, row);
    if (hr_is_null(column, row)) return HR_PRESENCE(node) >= PRESENCE_REQUIRED ? ERROR_NULL : 0;
    if (node->op <= ENCODE_CLOSED_ENUM) return hr_encode_number(e, node, row);
    switch (node->op) {
    case ENCODE_BYTES: case ENCODE_STRING:
        data = hr_text(column, row, &size);
        if (size == 0 && HR_PRESENCE(node) == PRESENCE_IMPLICIT) return 0;
        if (node->op == ENCODE_STRING && HR_UNLIKELY(!hr_is_utf8(data, size))) return ERROR_UTF8;
        HR_TRY(hr_reserve(e, 2 * HR_VARINT_BYTES_MAX + size));
        hr_put_varint(e, HR_TAG(node));
        hr_put_varint(e, (uint64_t)size);
        if (size) memcpy(e->out + e->size, data, (size_t)size);
        e->size += size;
        return 0;
    case ENCODE_MESSAGE:
        HR_TRY(hr_open(e, HR_TAG(node), &start));
        HR_TRY(hr_encode_fields(e, node->children[0], row));
        return hr_close(e, start);
    case ENCODE_GROUP:
        HR_TRY(hr_reserve(e, HR_VARINT_BYTES_MAX));
        hr_put_varint(e, HR_TAG(node));
        HR_TRY(hr_encode_fields(e, node->children[0], row));
        HR_TRY(hr_reserve(e, HR_VARINT_BYTES_MAX));
        hr_put_varint(e, HR_TAG(node) + 1);
        return 0;
    case ENCODE_TIME:
        return hr_encode_time(e, node, column, row);
    case ENCODE_DECIMAL:
        return hr_encode_decimal(e, node, column, row);
    case ENCODE_LIST: case ENCODE_PACKED_LIST:
        return hr_encode_list(e, node, column, row);
    case ENCODE_MAP:
        return hr_encode_map(e, node, column, row);
    }
    return ERROR_TAG;
}

static int hr_encode(hr_encoder *e, int32_t index, int64_t row) {
    int code = hr_encode_node(e, &e->nodes[index], index, row);
    if (HR_UNLIKELY(code != 0) && e->failed_node < 0) e->failed_node = index;
    return code;
}

#endif
