/* What the codecs of all formats share when they encode: columns to read, and the bytes that are written. */

#ifndef HEADRACE_PLAN_INPUTS_H
#define HEADRACE_PLAN_INPUTS_H

#include "columns.h"

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

/* Return the node of the member of a union that has a value: -1 if none has, -2 if several have. */
static inline int32_t hr_chosen_member(const hr_encoder *e, const hr_node *node, const hr_input *column, int64_t row) {
    int32_t i, chosen = -1;
    if (hr_is_null(column, row)) return -1;
    for (i = 0; i < node->child_count; i++) {
        if (hr_is_null(&e->columns[e->nodes[node->children[i]].column], row)) continue;
        if (chosen >= 0) return -2;
        chosen = node->children[i];
    }
    return chosen;
}

/* Read an integer of any width; returns 1 if an unsigned one exceeds the range. */
static int hr_read_integer(const hr_input *column, int64_t row, int64_t *value) {
    const uint8_t *p = column->data + (column->first + row) * column->width;
    switch (column->width) {
    case 1: *value = column->is_signed ? *(const int8_t *)p : *p; return 0;
    case 2: { int16_t v; memcpy(&v, p, 2); *value = column->is_signed ? v : (uint16_t)v; return 0; }
    case 4: { int32_t v; memcpy(&v, p, 4); *value = column->is_signed ? v : (int64_t)(uint32_t)v; return 0; }
    default: memcpy(value, p, 8); return !column->is_signed && *value < 0 ? 1 : 0;
    }
}

#endif
