/* From bytes to columns that grow, by a plan. */

#ifndef HEADRACE_AVRO_DECODE_H
#define HEADRACE_AVRO_DECODE_H

#include "codec.h"

typedef struct {
    const hr_node *nodes;
    hr_column *columns;
    const hr_constant *constants;
    const uint8_t *at, *end;
    int64_t zero_byte_items;
    int32_t failed_node;
} hr_decoder;

static inline int hr_start_batch(hr_decoder *d) {
    (void)d;
    return 0;
}

static inline void hr_start_row(hr_decoder *d) { d->zero_byte_items = 0; }

static inline void hr_end_batch(hr_decoder *d) { (void)d; }

/* Read the head of a block of an array or map; `block_bytes` is -1 if the block does not say how long it is. */
static int hr_block(hr_decoder *d, int64_t least, int64_t *count, int64_t *block_bytes) {
    const uint8_t *p = d->at;
    *block_bytes = -1;
    HR_TRY(hr_varint(&p, d->end, count));
    if (*count < 0) {
        if (*count == INT64_MIN) return ERROR_COUNT;
        *count = -*count;
        HR_TRY(hr_varint(&p, d->end, block_bytes));
        if (*block_bytes < 0) return ERROR_LENGTH;
        if (*block_bytes > d->end - p) return ERROR_TRUNCATED;
    }
    if (least > 0) {
        if (*count > (d->end - p) / least) return ERROR_COUNT;
    } else {
        if (*count > HR_ZERO_BYTE_ITEMS_MAX - d->zero_byte_items) return ERROR_COUNT;
        d->zero_byte_items += *count;
    }
    d->at = p;
    return 0;
}

static inline int hr_piece(hr_decoder *d, const uint8_t **data, int64_t *size) {
    const uint8_t *p = d->at;
    HR_TRY(hr_varint(&p, d->end, size));
    if (HR_UNLIKELY(*size < 0)) return ERROR_LENGTH;
    if (HR_UNLIKELY(*size > d->end - p)) return ERROR_TRUNCATED;
    *data = p;
    return 0;
}

static int hr_decode_decimal(hr_decoder *d, const hr_node *node, hr_column *column, const uint8_t *p, int64_t size) {
    uint8_t number[HR_DECIMAL_BYTES];
    if (!hr_decimal_read(p, size, number)) return ERROR_DECIMAL;
    if (!hr_decimal_fits(number, d->constants[node->children[0]].data)) return ERROR_DECIMAL;
    HR_TRY(hr_room(column));
    memcpy(column->data + column->length * column->width, number, (size_t)column->width);
    hr_appended(column);
    return 0;
}

static int hr_decode(hr_decoder *d, int32_t index);

static int hr_decode_items(hr_decoder *d, const hr_node *node) {
    hr_column *column = &d->columns[node->column];
    hr_column *items = &d->columns[column->children[0]];
    int64_t count, block_bytes, size;
    const uint8_t *p;
    HR_TRY(hr_room(column));
    for (;;) {
        HR_TRY(hr_block(d, node->size, &count, &block_bytes));
        if (count == 0) break;
        if (items->length + count > INT32_MAX) return FATAL_TOO_LARGE;
        if (node->op == OP_ARRAY) {
            for (; count > 0; count--) HR_TRY(hr_decode(d, node->children[0]));
            continue;
        }
        for (; count > 0; count--) {
            HR_TRY(hr_piece(d, &p, &size));
            if (HR_UNLIKELY(!hr_is_utf8(p, size))) return ERROR_UTF8;
            HR_TRY(hr_append_bytes(&d->columns[items->children[0]], p, size));
            d->at = p + size;
            HR_TRY(hr_decode(d, node->children[0]));
            HR_TRY(hr_room(items));
            hr_appended(items);
        }
    }
    column->offsets[column->length + 1] = (int32_t)items->length;
    hr_appended(column);
    return 0;
}

static int hr_skip_items(hr_decoder *d, const hr_node *node) {
    int64_t count, block_bytes, size;
    const uint8_t *p;
    for (;;) {
        HR_TRY(hr_block(d, node->size, &count, &block_bytes));
        if (count == 0) return 0;
        if (block_bytes >= 0) {
            d->at += block_bytes;
            continue;
        }
        for (; count > 0; count--) {
            if (node->op == OP_SKIP_MAP) {
                HR_TRY(hr_piece(d, &p, &size));
                d->at = p + size;
            }
            HR_TRY(hr_decode(d, node->children[0]));
        }
    }
}

static int hr_decode_node(hr_decoder *d, const hr_node *node) {
    hr_column *column = node->column >= 0 ? &d->columns[node->column] : NULL;
    const uint8_t *p = d->at, *data;
    int64_t value, size;
    int32_t i;
    switch (node->op) {
    case OP_NULL:
        return hr_append_null(d->columns, node->column);
    case OP_BOOLEAN:
        if (HR_UNLIKELY(p == d->end)) return ERROR_TRUNCATED;
        if (HR_UNLIKELY(*p > 1)) return ERROR_BOOLEAN;
        HR_TRY(hr_room(column));
        column->data[column->length] = *p;
        d->at = p + 1;
        hr_appended(column);
        return 0;
    case OP_INT:
        HR_TRY(hr_varint(&p, d->end, &value));
        if (HR_UNLIKELY(value != (int32_t)value)) return ERROR_INTEGER;
        HR_TRY(hr_room(column));
        ((int32_t *)column->data)[column->length] = (int32_t)value;
        d->at = p;
        hr_appended(column);
        return 0;
    case OP_INT_TO_LONG: case OP_LONG:
        HR_TRY(hr_varint(&p, d->end, &value));
        if (HR_UNLIKELY(node->op == OP_INT_TO_LONG && value != (int32_t)value)) return ERROR_INTEGER;
        HR_TRY(hr_room(column));
        ((int64_t *)column->data)[column->length] = value;
        d->at = p;
        hr_appended(column);
        return 0;
    case OP_LONG_TO_FLOAT: case OP_LONG_TO_DOUBLE:
        HR_TRY(hr_varint(&p, d->end, &value));
        if (HR_UNLIKELY(node->size && value != (int32_t)value)) return ERROR_INTEGER;
        HR_TRY(hr_room(column));
        if (node->op == OP_LONG_TO_FLOAT) ((float *)column->data)[column->length] = (float)value;
        else ((double *)column->data)[column->length] = (double)value;
        d->at = p;
        hr_appended(column);
        return 0;
    case OP_FLOAT: case OP_DOUBLE: case OP_FIXED:
        size = column->width;
        if (HR_UNLIKELY(d->end - p < size)) return ERROR_TRUNCATED;
        HR_TRY(hr_room(column));
        if (HR_LIKELY(size == 8)) memcpy(column->data + column->length * 8, p, 8);
        else memcpy(column->data + column->length * size, p, (size_t)size);
        d->at = p + size;
        hr_appended(column);
        return 0;
    case OP_FLOAT_TO_DOUBLE: {
        float narrow;
        if (HR_UNLIKELY(d->end - p < 4)) return ERROR_TRUNCATED;
        HR_TRY(hr_room(column));
        memcpy(&narrow, p, 4);
        ((double *)column->data)[column->length] = (double)narrow;
        d->at = p + 4;
        hr_appended(column);
        return 0;
    }
    case OP_BYTES: case OP_STRING:
        HR_TRY(hr_piece(d, &data, &size));
        if (HR_UNLIKELY(node->op == OP_STRING && !hr_is_utf8(data, size))) return ERROR_UTF8;
        HR_TRY(hr_append_bytes(column, data, size));
        d->at = data + size;
        return 0;
    case OP_ENUM:
        HR_TRY(hr_varint(&p, d->end, &value));
        if (HR_UNLIKELY(value < 0 || value >= node->child_count)) return ERROR_SYMBOL;
        i = node->children[value];
        if (HR_UNLIKELY(i < 0)) return ERROR_UNRESOLVED;
        HR_TRY(hr_append_bytes(column, d->constants[i].data, d->constants[i].size));
        d->at = p;
        return 0;
    case OP_DECIMAL_BYTES:
        HR_TRY(hr_piece(d, &data, &size));
        HR_TRY(hr_decode_decimal(d, node, column, data, size));
        d->at = data + size;
        return 0;
    case OP_DECIMAL_FIXED:
        if (HR_UNLIKELY(d->end - p < node->size)) return ERROR_TRUNCATED;
        HR_TRY(hr_decode_decimal(d, node, column, p, node->size));
        d->at = p + node->size;
        return 0;
    case OP_RECORD:
        for (i = 0; i < node->child_count; i++) HR_TRY(hr_decode(d, node->children[i]));
        HR_TRY(hr_room(column));
        hr_appended(column);
        return 0;
    case OP_ARRAY: case OP_MAP:
        return hr_decode_items(d, node);
    case OP_UNION: case OP_SKIP_UNION:
        HR_TRY(hr_varint(&p, d->end, &value));
        if (HR_UNLIKELY(value < 0 || value >= node->child_count)) return ERROR_BRANCH;
        d->at = p;
        return hr_decode(d, node->children[value]);
    case OP_MEMBER:
        HR_TRY(hr_decode(d, node->children[0]));
        for (i = 0; i < column->child_count; i++)
            if (i != node->size) HR_TRY(hr_append_null(d->columns, column->children[i]));
        HR_TRY(hr_room(column));
        hr_appended(column);
        return 0;
    case OP_CONSTANT: {
        const uint8_t *end = d->end;
        int code;
        d->at = d->constants[node->size].data;
        d->end = d->at + d->constants[node->size].size;
        code = hr_decode(d, node->children[0]);
        d->at = p;
        d->end = end;
        return code;
    }
    case OP_FAIL:
        return ERROR_UNRESOLVED;
    case OP_SKIP_FIXED:
        if (HR_UNLIKELY(d->end - p < node->size)) return ERROR_TRUNCATED;
        d->at = p + node->size;
        return 0;
    case OP_SKIP_LONG:
        HR_TRY(hr_varint(&p, d->end, &value));
        d->at = p;
        return 0;
    case OP_SKIP_BYTES:
        HR_TRY(hr_piece(d, &data, &size));
        d->at = data + size;
        return 0;
    case OP_SKIP_RECORD:
        for (i = 0; i < node->child_count; i++) HR_TRY(hr_decode(d, node->children[i]));
        return 0;
    case OP_SKIP_ARRAY: case OP_SKIP_MAP:
        return hr_skip_items(d, node);
    }
    return ERROR_UNRESOLVED;
}

static int hr_decode(hr_decoder *d, int32_t index) {
    int code = hr_decode_node(d, &d->nodes[index]);
    if (HR_UNLIKELY(code != 0) && d->failed_node < 0) d->failed_node = index;
    return code;
}

#endif
