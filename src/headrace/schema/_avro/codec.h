/* The inner loops of the Avro codec, without Python: plans are interpreted, values go from bytes to growing columns and
   back. `reference.py` defines the behaviour, `layout.py` the operations.

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

/* ---- decoding ---- */

typedef struct {
    int32_t kind, width, nullable, child_count;
    int32_t *children;
    int64_t length, null_count, capacity;
    uint8_t *valid;   /* a byte for each value, until hr_pack */
    uint8_t *data;
    int64_t data_size, data_capacity;  /* of a binary column */
    int32_t *offsets;
} hr_column;

typedef struct {
    const hr_node *nodes;
    hr_column *columns;
    const hr_constant *constants;
    const uint8_t *at, *end;
    int64_t zero_byte_items;
    int32_t failed_node;
} hr_decoder;

static int hr_resize(void **memory, int64_t bytes) {
    void *larger = realloc(*memory, bytes > 0 ? (size_t)bytes : 1);
    if (larger == NULL) return FATAL_MEMORY;
    *memory = larger;
    return 0;
}

static int hr_grow(hr_column *column, int64_t capacity) {
    if (capacity < 16) capacity = 16;
    if (column->nullable) HR_TRY(hr_resize((void **)&column->valid, capacity));
    if (column->kind == KIND_BOOLEAN || column->kind == KIND_FIXED)
        HR_TRY(hr_resize((void **)&column->data, capacity * column->width));
    if (column->kind == KIND_BINARY || column->kind == KIND_LIST) {
        int is_new = column->offsets == NULL;
        HR_TRY(hr_resize((void **)&column->offsets, (capacity + 1) * 4));
        if (is_new) column->offsets[0] = 0;
    }
    column->capacity = capacity;
    return 0;
}

/* Make room for one more value. */
static inline int hr_room(hr_column *column) {
    if (HR_LIKELY(column->length < column->capacity)) return 0;
    if (column->length >= INT32_MAX) return FATAL_TOO_LARGE;
    return hr_grow(column, column->length * 2);
}

static inline void hr_appended(hr_column *column) {
    if (column->nullable) column->valid[column->length] = 1;
    column->length++;
}

static inline int hr_append_bytes(hr_column *column, const uint8_t *data, int64_t size) {
    int64_t total = column->data_size + size;
    HR_TRY(hr_room(column));
    if (HR_UNLIKELY(total > column->data_capacity)) {
        int64_t capacity = total < 64 ? 128 : total * 2;
        if (total > INT32_MAX) return FATAL_TOO_LARGE;
        if (capacity > INT32_MAX) capacity = INT32_MAX;
        HR_TRY(hr_resize((void **)&column->data, capacity));
        column->data_capacity = capacity;
    }
    if (size) memcpy(column->data + column->data_size, data, (size_t)size);
    column->data_size = total;
    column->offsets[column->length + 1] = (int32_t)total;
    hr_appended(column);
    return 0;
}

static int hr_append_null(hr_decoder *d, int32_t index) {
    hr_column *column = &d->columns[index];
    int32_t i;
    HR_TRY(hr_room(column));
    switch (column->kind) {
    case KIND_BOOLEAN: case KIND_FIXED:
        memset(column->data + column->length * column->width, 0, (size_t)column->width);
        break;
    case KIND_BINARY: case KIND_LIST:
        column->offsets[column->length + 1] = column->offsets[column->length];
        break;
    case KIND_STRUCT:
        for (i = 0; i < column->child_count; i++) HR_TRY(hr_append_null(d, column->children[i]));
        break;
    }
    if (column->nullable) column->valid[column->length] = 0;
    column->null_count++;
    column->length++;
    return 0;
}

/* Remove everything after the first `length` values, also what an unfinished value has left in the children. */
static void hr_truncate(hr_decoder *d, int32_t index, int64_t length) {
    hr_column *column = &d->columns[index];
    int64_t row;
    int32_t i;
    if (column->nullable)
        for (row = length; row < column->length; row++) column->null_count -= !column->valid[row];
    if (column->kind == KIND_BINARY) column->data_size = column->offsets ? column->offsets[length] : 0;
    if (column->kind == KIND_LIST) hr_truncate(d, column->children[0], column->offsets ? column->offsets[length] : 0);
    if (column->kind == KIND_STRUCT)
        for (i = 0; i < column->child_count; i++) hr_truncate(d, column->children[i], length);
    if (column->length > length) column->length = length;
}

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
    uint8_t sign = size && (p[0] & 0x80) ? 0xFF : 0;
    int64_t i;
    memset(number, sign, HR_DECIMAL_BYTES);
    for (i = 0; i < size; i++) {
        if (i < HR_DECIMAL_BYTES) number[i] = p[size - 1 - i];
        else if (p[size - 1 - i] != sign) return ERROR_DECIMAL;
    }
    if (size > HR_DECIMAL_BYTES && ((number[HR_DECIMAL_BYTES - 1] ^ sign) & 0x80)) return ERROR_DECIMAL;
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
        return hr_append_null(d, node->column);
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
            if (i != node->size) HR_TRY(hr_append_null(d, column->children[i]));
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

/* Turn bytes into bits, in place. */
static void hr_pack(uint8_t *bytes, int64_t length) {
    int64_t i, full = length / 8;
    for (i = 0; i < full; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * 8, 8);
        bytes[i] = (uint8_t)((word * 0x0102040810204080ULL) >> 56);
    }
    if (length % 8) {
        uint8_t last = 0;
        for (i = 0; i < length % 8; i++) last |= (uint8_t)(bytes[full * 8 + i] << i);
        bytes[full] = last;
    }
}

/* ---- encoding ---- */

typedef struct {
    int32_t kind, width, is_signed, child_count;
    int32_t *children;
    int64_t first;
    const uint8_t *validity, *data;
    const int32_t *offsets;
} hr_input;

typedef struct {
    const hr_node *nodes;
    const hr_input *columns;
    const hr_constant *constants;
    uint8_t *out;
    int64_t size, capacity;
    int32_t failed_node;
} hr_encoder;

static int hr_reserve_more(hr_encoder *e, int64_t bytes) {
    int64_t capacity = (e->size + bytes) * 2;
    if (e->size + bytes > INT32_MAX) return FATAL_TOO_LARGE;
    if (capacity < 256) capacity = 256;
    if (capacity > INT32_MAX) capacity = INT32_MAX;
    HR_TRY(hr_resize((void **)&e->out, capacity));
    e->capacity = capacity;
    return 0;
}

static inline int hr_reserve(hr_encoder *e, int64_t bytes) {
    return HR_LIKELY(e->size + bytes <= e->capacity) ? 0 : hr_reserve_more(e, bytes);
}

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

static inline int hr_put_bytes(hr_encoder *e, const uint8_t *data, int64_t size) {
    HR_TRY(hr_reserve(e, size));
    if (size) memcpy(e->out + e->size, data, (size_t)size);
    e->size += size;
    return 0;
}

static inline int hr_is_null(const hr_input *column, int64_t row) {
    row += column->first;
    return column->validity != NULL && !(column->validity[row >> 3] >> (row & 7) & 1);
}

static int hr_read_integer(const hr_input *column, int64_t row, int64_t *value) {
    const uint8_t *p = column->data + (column->first + row) * column->width;
    switch (column->width) {
    case 1: *value = column->is_signed ? *(const int8_t *)p : *p; return 0;
    case 2: { int16_t v; memcpy(&v, p, 2); *value = column->is_signed ? v : (uint16_t)v; return 0; }
    case 4: { int32_t v; memcpy(&v, p, 4); *value = column->is_signed ? v : (int64_t)(uint32_t)v; return 0; }
    default: memcpy(value, p, 8); return !column->is_signed && *value < 0 ? ERROR_INTEGER : 0;
    }
}

static int hr_encode_decimal(hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    uint8_t number[HR_DECIMAL_BYTES];
    const uint8_t *p = column->data + (column->first + row) * column->width;
    uint8_t sign = p[column->width - 1] & 0x80 ? 0xFF : 0;
    int64_t size, i;
    memset(number, sign, HR_DECIMAL_BYTES);
    memcpy(number, p, (size_t)column->width);
    if (!hr_decimal_fits(number, e->constants[node->children[0]].data)) return ERROR_DECIMAL;
    if (node->op == ENCODE_DECIMAL_BYTES) {
        for (size = HR_DECIMAL_BYTES; size > 1; size--)
            if (number[size - 1] != sign || ((number[size - 2] ^ sign) & 0x80)) break;
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
    int32_t i, chosen = -1;
    if (!hr_is_null(column, row))
        for (i = 0; i < node->child_count; i++) {
            if (hr_is_null(&e->columns[e->nodes[node->children[i]].column], row)) continue;
            if (chosen >= 0) return ERROR_MEMBERS;
            chosen = node->children[i];
        }
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
        HR_TRY(hr_read_integer(column, row, &value));
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
