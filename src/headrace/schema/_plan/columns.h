/* What the codecs of all formats share when they decode: nodes of plans, and columns that grow. The numbers of column kinds
   are those of `layout.py`.

   A function returns 0, the code of an error of the row (> 0), or a reason to give up on the batch (< 0). */

#ifndef HEADRACE_PLAN_COLUMNS_H
#define HEADRACE_PLAN_COLUMNS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_NULL, KIND_BOOLEAN, KIND_FIXED, KIND_BINARY, KIND_LIST, KIND_STRUCT };

enum { FATAL_MEMORY = -1, FATAL_TOO_LARGE = -2 };

#define HR_TRY(call) do { int hr_code_ = (call); if (__builtin_expect(hr_code_ != 0, 0)) return hr_code_; } while (0)
#define HR_LIKELY(x) __builtin_expect(!!(x), 1)
#define HR_UNLIKELY(x) __builtin_expect(!!(x), 0)

typedef struct { const uint8_t *data; int64_t size; } hr_constant;

typedef struct {
    int32_t op, column, child_count;
    int64_t size, multiplier, divisor;
    int32_t *children;
} hr_node;

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

static int hr_resize(void **memory, int64_t bytes) {
    void *larger = realloc(*memory, bytes > 0 ? (size_t)bytes : 1);
    if (larger == NULL) return FATAL_MEMORY;
    *memory = larger;
    return 0;
}

/* ---- columns ---- */

typedef struct {
    int32_t kind, width, nullable, child_count;
    int32_t *children;
    int64_t length, null_count, capacity;
    uint8_t *valid;   /* a byte for each value, until hr_pack */
    uint8_t *data;
    int64_t data_size, data_capacity;  /* of a binary column */
    int32_t *offsets;
} hr_column;

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

static int hr_append_null(hr_column *columns, int32_t index) {
    hr_column *column = &columns[index];
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
        for (i = 0; i < column->child_count; i++) HR_TRY(hr_append_null(columns, column->children[i]));
        break;
    }
    if (column->nullable) column->valid[column->length] = 0;
    column->null_count++;
    column->length++;
    return 0;
}

/* Remove everything after the first `length` values, also what an unfinished value has left in the children. */
static void hr_truncate(hr_column *columns, int32_t index, int64_t length) {
    hr_column *column = &columns[index];
    int64_t row;
    int32_t i;
    if (column->nullable)
        for (row = length; row < column->length; row++) column->null_count -= !column->valid[row];
    if (column->kind == KIND_BINARY) column->data_size = column->offsets ? column->offsets[length] : 0;
    if (column->kind == KIND_LIST) hr_truncate(columns, column->children[0], column->offsets ? column->offsets[length] : 0);
    if (column->kind == KIND_STRUCT)
        for (i = 0; i < column->child_count; i++) hr_truncate(columns, column->children[i], length);
    if (column->length > length) column->length = length;
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

#endif
