/* From bytes to columns that grow, by a plan.

   A message is scanned first: each field gets a slot with its last value, or a chain of its occurrences if it is repeated or
   a message. Then its fields are appended to their columns, and messages inside are scanned in turn. So fields may be in any
   order, the last value of a field wins, and occurrences of a message are merged by scanning one after the other. */

#ifndef HEADRACE_PROTOBUF_DECODE_H
#define HEADRACE_PROTOBUF_DECODE_H

#include <stdio.h>

#include "codec.h"

typedef struct {
    const uint8_t *data;  /* NULL: a number */
    uint64_t value;       /* the number, or the size of the data */
    int32_t next, last;   /* further occurrences, by index; 0: none */
    int32_t is_present;
    int32_t is_unknown;   /* a number that its closed enum lacks */
} hr_slot;

typedef struct {
    const hr_node *nodes;
    hr_column *columns;
    const hr_constant *constants;
    const uint8_t *at, *end;
    int32_t failed_node;
    /* A stack of slots; slot 0 is the value of the row. It moves when it grows, so slots are named by index. */
    hr_slot *slots;
    int64_t top, capacity;
    int64_t cells, batch_cells;
} hr_decoder;

static int hr_start_batch(hr_decoder *d) {
    d->capacity = 256;
    return hr_resize((void **)&d->slots, d->capacity * (int64_t)sizeof(hr_slot));
}

static void hr_end_batch(hr_decoder *d) {
    free(d->slots);
    d->slots = NULL;
}

static inline void hr_start_row(hr_decoder *d) {
    d->top = 1;
    d->cells = 0;
}

static int hr_grow_slots(hr_decoder *d, int64_t count) {
    int64_t capacity = (d->top + count) * 2;
    if (capacity > INT32_MAX) return FATAL_TOO_LARGE;
    HR_TRY(hr_resize((void **)&d->slots, capacity * (int64_t)sizeof(hr_slot)));
    d->capacity = capacity;
    return 0;
}

/* Push empty slots. */
static inline int hr_push(hr_decoder *d, int64_t count, int32_t *base) {
    if (HR_UNLIKELY(d->top + count > d->capacity)) HR_TRY(hr_grow_slots(d, count));
    *base = (int32_t)d->top;
    memset(d->slots + d->top, 0, (size_t)count * sizeof(hr_slot));
    d->top += count;
    return 0;
}

/* ---- the wire format ---- */

/* As in Google's parsers, bits above the 64th are ignored. */
static inline int hr_varint(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    const uint8_t *p = *at;
    uint64_t bits = 0;
    int shift;
    if (HR_LIKELY(p < end && *p < 0x80)) {
        *value = *p;
        *at = p + 1;
        return 0;
    }
    for (shift = 0; shift < 70; shift += 7) {
        uint8_t byte;
        if (HR_UNLIKELY(p == end)) return ERROR_TRUNCATED;
        byte = *p++;
        bits |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = bits;
            *at = p;
            return 0;
        }
    }
    return ERROR_VARINT;
}

static inline int hr_tag(const uint8_t **at, const uint8_t *end, uint32_t *tag) {
    const uint8_t *start = *at;
    uint64_t value;
    int code = hr_varint(at, end, &value);
    if (HR_UNLIKELY(code != 0)) return code == ERROR_TRUNCATED && end - start < 5 ? code : ERROR_TAG;
    if (HR_UNLIKELY(*at - start > 5 || value > UINT32_MAX || value < 8 || (value & 7) > WIRE_FIXED32)) return ERROR_TAG;
    *tag = (uint32_t)value;
    return 0;
}

static inline int hr_piece(const uint8_t **at, const uint8_t *end, const uint8_t **data, uint64_t *size) {
    const uint8_t *p = *at;
    HR_TRY(hr_varint(&p, end, size));
    if (HR_UNLIKELY(*size > (uint64_t)(end - p))) return ERROR_TRUNCATED;
    *data = p;
    *at = p + *size;
    return 0;
}

/* Skip the rest of a group; `content_end` is where its content ends. */
static int hr_skip_group(const uint8_t **at, const uint8_t *end, uint32_t tag, const uint8_t **content_end) {
    uint32_t open[HR_GROUP_DEPTH_MAX];
    const uint8_t *p = *at, *data;
    uint64_t value;
    int depth = 1;
    open[0] = tag >> 3;
    for (;;) {
        *content_end = p;
        if (p == end) return ERROR_TRUNCATED;
        HR_TRY(hr_tag(&p, end, &tag));
        switch (tag & 7) {
        case WIRE_VARINT:
            HR_TRY(hr_varint(&p, end, &value));
            break;
        case WIRE_FIXED64: case WIRE_FIXED32:
            value = (tag & 7) == WIRE_FIXED64 ? 8 : 4;
            if ((uint64_t)(end - p) < value) return ERROR_TRUNCATED;
            p += value;
            break;
        case WIRE_BYTES:
            HR_TRY(hr_piece(&p, end, &data, &value));
            break;
        case WIRE_GROUP:
            if (depth == HR_GROUP_DEPTH_MAX) return ERROR_GROUP;
            open[depth++] = tag >> 3;
            break;
        default:
            if (open[--depth] != tag >> 3) return ERROR_GROUP;
            if (depth == 0) {
                *at = p;
                return 0;
            }
        }
    }
}

/* Read the value after a tag. */
static inline int hr_read(const uint8_t **at, const uint8_t *end, uint32_t tag, const uint8_t **data, uint64_t *value) {
    const uint8_t *p = *at, *content_end;
    *data = NULL;
    switch (tag & 7) {
    case WIRE_VARINT:
        return hr_varint(at, end, value);
    case WIRE_BYTES:
        return hr_piece(at, end, data, value);
    case WIRE_FIXED64:
        if (HR_UNLIKELY(end - p < 8)) return ERROR_TRUNCATED;
        memcpy(value, p, 8);
        *at = p + 8;
        return 0;
    case WIRE_FIXED32: {
        uint32_t narrow;
        if (HR_UNLIKELY(end - p < 4)) return ERROR_TRUNCATED;
        memcpy(&narrow, p, 4);
        *value = narrow;
        *at = p + 4;
        return 0;
    }
    case WIRE_GROUP:
        HR_TRY(hr_skip_group(at, end, tag, &content_end));
        *data = p;
        *value = (uint64_t)(content_end - p);
        return 0;
    }
    return ERROR_GROUP;  /* the end of a group that was not started */
}

/* ---- scanning ---- */

static inline int64_t hr_enum_index(const hr_decoder *d, const hr_node *node, int32_t number) {
    const hr_constant *numbers = &d->constants[node->children[0]];
    int64_t low = 0, high = numbers->size / 4;
    int32_t candidate;
    if (number >= 0 && number < high) {  /* mostly the numbers are 0, 1, 2, … */
        memcpy(&candidate, numbers->data + 4 * (int64_t)number, 4);
        if (HR_LIKELY(candidate == number)) return number;
    }
    while (low < high) {
        int64_t middle = (low + high) / 2;
        memcpy(&candidate, numbers->data + 4 * middle, 4);
        if (candidate == number) return middle;
        if (candidate < number) low = middle + 1;
        else high = middle;
    }
    return -1;
}

/* Return which child of a message has a tag; -1 if the field is unknown, or has another type. */
static int32_t hr_find(const hr_decoder *d, const hr_node *message, uint32_t tag) {
    int32_t low = 0, high = message->child_count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        const hr_node *field = &d->nodes[message->children[middle]];
        if (HR_TAG(field) >> 3 == tag >> 3) {
            int wire = (int)(tag & 7), item_wire;
            if (HR_WIRE(field) == wire) return middle;
            if (field->op != OP_LIST) return -1;
            item_wire = HR_WIRE(&d->nodes[field->children[0]]);
            if (wire == item_wire) return middle;
            return wire == WIRE_BYTES && item_wire != WIRE_GROUP ? middle : -1;
        }
        if (HR_TAG(field) >> 3 < tag >> 3) low = middle + 1;
        else high = middle;
    }
    return -1;
}

static inline int hr_is_chained(int32_t op) {
    return op >= OP_MESSAGE && op <= OP_MAP;
}

static int hr_scan_field(hr_decoder *d, const hr_node *message, int32_t base, int32_t i, const hr_slot *occurrence) {
    const hr_node *field = &d->nodes[message->children[i]];
    hr_slot *slot = &d->slots[base + i];
    int32_t oneof = HR_ONEOF(field);
    if (field->op == OP_CLOSED_ENUM && hr_enum_index(d, field, (int32_t)occurrence->value) < 0) {
        slot->is_unknown = 1;
        return 0;
    }
    if (oneof >= 0) {
        hr_slot *current = &d->slots[base + message->child_count + oneof];
        if (current->value && current->value != (uint64_t)i + 1)
            memset(&d->slots[base + (int32_t)current->value - 1], 0, sizeof(hr_slot));
        current->value = (uint64_t)i + 1;
    }
    if (hr_is_chained(field->op) && slot->is_present) {
        int32_t added, last;
        HR_TRY(hr_push(d, 1, &added));
        slot = &d->slots[base + i];
        last = slot->last ? slot->last : base + i;
        d->slots[added] = *occurrence;
        d->slots[last].next = added;
        slot->last = added;
    } else {
        *slot = *occurrence;
    }
    return 0;
}

/* Fill the slots from `base` on with the fields of a message, whose first occurrence is in slot `chunk`. */
static int hr_scan(hr_decoder *d, int32_t index, int32_t chunk, int32_t base) {
    const hr_node *message = &d->nodes[index];
    int32_t expected = 0, i;
    hr_slot occurrence;
    memset(&occurrence, 0, sizeof(occurrence));
    occurrence.is_present = 1;
    do {
        const uint8_t *p = d->slots[chunk].data, *end = p + d->slots[chunk].value;
        while (p < end) {
            uint32_t tag;
            int code;
            d->at = p;
            code = hr_tag(&p, end, &tag);
            if (HR_UNLIKELY(code != 0)) {
                d->failed_node = index;
                return code;
            }
            if (HR_LIKELY(expected < message->child_count && HR_TAG(&d->nodes[message->children[expected]]) == tag))
                i = expected;
            else if (expected > 0 && HR_TAG(&d->nodes[message->children[expected - 1]]) == tag)
                i = expected - 1;
            else
                i = hr_find(d, message, tag);
            code = hr_read(&p, end, tag, &occurrence.data, &occurrence.value);
            if (HR_UNLIKELY(code != 0)) {
                d->failed_node = i >= 0 ? message->children[i] : index;
                return code;
            }
            if (i < 0) continue;
            HR_TRY(hr_scan_field(d, message, base, i, &occurrence));
            expected = i + 1;
        }
        chunk = d->slots[chunk].next;
    } while (chunk);
    return 0;
}

/* ---- appending ---- */

static int hr_emit(hr_decoder *d, int32_t index, int32_t slot);

static inline int hr_append_fixed(hr_column *column, const void *value, int32_t width) {
    HR_TRY(hr_room(column));
    memcpy(column->data + column->length * width, value, (size_t)width);
    hr_appended(column);
    return 0;
}

static int hr_emit_enum(hr_decoder *d, const hr_node *node, hr_column *column, int32_t number) {
    int64_t index = hr_enum_index(d, node, number);
    if (HR_LIKELY(index >= 0)) {
        const hr_constant *name = &d->constants[node->children[2 + index]];
        return hr_append_bytes(column, name->data, name->size);
    } else {
        char text[16];
        int size = snprintf(text, sizeof(text), "%d", (int)number);
        return hr_append_bytes(column, (const uint8_t *)text, size);
    }
}

static int hr_emit_opaque(hr_decoder *d, hr_column *column, int32_t slot) {
    int32_t chunk = slot;
    if (slot < 0) return hr_append_bytes(column, NULL, 0);
    HR_TRY(hr_append_bytes(column, d->slots[slot].data, (int64_t)d->slots[slot].value));
    while ((chunk = d->slots[chunk].next) != 0) {  /* append to the value that is there */
        column->length--;
        HR_TRY(hr_append_bytes(column, d->slots[chunk].data, (int64_t)d->slots[chunk].value));
    }
    return 0;
}

/* Scan a message whose fields are combined to one value; `base` has their slots. */
static int hr_scan_whole(hr_decoder *d, const hr_node *node, int32_t slot, int32_t *base) {
    HR_TRY(hr_push(d, d->nodes[node->children[0]].child_count, base));
    if (slot >= 0) {
        HR_TRY(hr_scan(d, node->children[0], slot, *base));
        d->at = d->slots[slot].data;
    }
    return 0;
}

static int hr_emit_time(hr_decoder *d, const hr_node *node, hr_column *column, int32_t slot) {
    int64_t time;
    int32_t base;
    HR_TRY(hr_scan_whole(d, node, slot, &base));
    if (__builtin_mul_overflow((int64_t)d->slots[base].value, (int64_t)1000000, &time) ||
        __builtin_add_overflow(time, (int64_t)((int32_t)d->slots[base + 1].value / 1000), &time)) return ERROR_TIME;
    d->top = base;
    return hr_append_fixed(column, &time, 8);
}

static int hr_emit_decimal(hr_decoder *d, const hr_node *node, hr_column *column, int32_t slot) {
    uint8_t number[HR_DECIMAL_BYTES];
    int32_t base;
    HR_TRY(hr_scan_whole(d, node, slot, &base));
    if (!hr_decimal_read(d->slots[base].data, (int64_t)d->slots[base].value, number)) return ERROR_DECIMAL;
    if (!hr_decimal_fits(number, d->constants[node->children[1]].data)) return ERROR_DECIMAL;
    /* Without bytes, the number is 0 in any scale. */
    if (d->slots[base].value && (int32_t)d->slots[base + 2].value != node->children[2]) return ERROR_DECIMAL;
    d->top = base;
    return hr_append_fixed(column, number, column->width);
}

static int hr_count_item(hr_decoder *d, int32_t cells, const uint8_t *at) {
    d->cells += cells;
    d->batch_cells += cells;
    if (HR_UNLIKELY(d->cells > HR_ITEM_CELLS_MAX)) {
        d->at = at;
        return ERROR_COUNT;
    }
    return HR_UNLIKELY(d->batch_cells > HR_BATCH_CELLS_MAX) ? FATAL_TOO_LARGE : 0;
}

static inline int hr_is_unknown_number(const hr_decoder *d, const hr_node *item, uint64_t value) {
    return item->op == OP_CLOSED_ENUM && hr_enum_index(d, item, (int32_t)value) < 0;
}

static int hr_emit_packed(hr_decoder *d, int32_t item, int32_t slot) {
    const hr_node *node = &d->nodes[item];
    const uint8_t *p = d->slots[slot].data, *end = p + d->slots[slot].value, *data;
    while (p < end) {
        d->at = p;
        HR_TRY(hr_read(&p, end, HR_TAG(node), &data, &d->slots[slot].value));
        if (!hr_is_unknown_number(d, node, d->slots[slot].value)) HR_TRY(hr_emit(d, item, slot));
    }
    return 0;
}

static int hr_emit_list(hr_decoder *d, const hr_node *node, hr_column *column, int32_t slot) {
    hr_column *items = &d->columns[column->children[0]];
    int32_t item = node->children[0], single;
    int wire = HR_WIRE(&d->nodes[item]), is_number = wire != WIRE_BYTES && wire != WIRE_GROUP;
    HR_TRY(hr_room(column));
    if (slot >= 0) {
        HR_TRY(hr_push(d, 1, &single));
        do {
            d->slots[single] = d->slots[slot];
            d->slots[single].next = d->slots[single].last = 0;
            if (is_number && d->slots[single].data != NULL) {
                HR_TRY(hr_emit_packed(d, item, single));
            } else if (!is_number || !hr_is_unknown_number(d, &d->nodes[item], d->slots[single].value)) {
                if (node->children[1]) HR_TRY(hr_count_item(d, node->children[1], d->slots[single].data));
                HR_TRY(hr_emit(d, item, single));
            }
            slot = d->slots[slot].next;
        } while (slot);
        d->top = single;
    }
    column->offsets[column->length + 1] = (int32_t)items->length;
    hr_appended(column);
    return 0;
}

/* ---- maps ---- */

typedef struct {
    const uint8_t *data;
    uint64_t value;
    int32_t entry;  /* the slot of the entry; its key and value are in the next two */
} hr_key;

/* Return a key that is a number in one form for all encodings. */
static uint64_t hr_key_number(int32_t op, uint64_t value) {
    switch (op) {
    case OP_BOOLEAN: return value != 0;
    case OP_INT64: case OP_UINT64: case OP_SINT64: return value;
    default: return (uint32_t)value;
    }
}

static int hr_compare_keys(const void *left_key, const void *right_key) {
    const hr_key *left = (const hr_key *)left_key, *right = (const hr_key *)right_key;
    if (left->value != right->value) return left->value < right->value ? -1 : 1;
    if (left->data != NULL && left->value) {
        int order = memcmp(left->data, right->data, (size_t)left->value);
        if (order) return order;
    }
    return left->entry < right->entry ? -1 : left->entry > right->entry;
}

static int hr_same_key(const hr_key *left, const hr_key *right) {
    if (left->value != right->value) return 0;
    return left->data == NULL || left->value == 0 || memcmp(left->data, right->data, (size_t)left->value) == 0;
}

/* Store in `last` of each entry which one has its value: the last with the same key; 0 for all but the first of a key. */
static int hr_drop_duplicates(hr_decoder *d, int32_t key_op, int32_t first, int64_t count) {
    hr_key *keys = (hr_key *)malloc((size_t)count * sizeof(hr_key));
    int64_t i, start = 0;
    int32_t entry = first;
    if (keys == NULL) return FATAL_MEMORY;
    for (i = 0; i < count; i++) {
        const hr_slot *key = &d->slots[entry + 1];
        int is_text = key_op == OP_STRING;
        keys[i].data = is_text ? key->data : NULL;
        keys[i].value = is_text ? key->value : hr_key_number(key_op, key->value);
        keys[i].entry = entry;
        entry = d->slots[entry].next;
    }
    qsort(keys, (size_t)count, sizeof(hr_key), hr_compare_keys);
    for (i = 1; i <= count; i++) {
        if (i < count && hr_same_key(&keys[start], &keys[i])) {
            d->slots[keys[i].entry].last = 0;
            continue;
        }
        d->slots[keys[start].entry].last = keys[i - 1].entry;
        start = i;
    }
    free(keys);
    return 0;
}

static int hr_emit_part(hr_decoder *d, int32_t index, int32_t slot) {
    return hr_emit(d, index, d->slots[slot].is_present ? slot : -1);
}

static int hr_emit_map(hr_decoder *d, const hr_node *node, hr_column *column, int32_t slot) {
    hr_column *entries = &d->columns[column->children[0]];
    const hr_node *parts = &d->nodes[node->children[0]];
    int32_t first = 0, previous = 0, entry, base = (int32_t)d->top, single;
    int64_t count = 0;
    HR_TRY(hr_room(column));
    if (slot >= 0) {
        HR_TRY(hr_push(d, 1, &single));
        do {
            int64_t top = d->top;
            HR_TRY(hr_count_item(d, node->children[1], d->slots[slot].data));
            HR_TRY(hr_push(d, 3, &entry));
            d->slots[single] = d->slots[slot];
            d->slots[single].next = d->slots[single].last = 0;
            HR_TRY(hr_scan(d, node->children[0], single, entry + 1));
            slot = d->slots[slot].next;
            if (!d->slots[entry + 2].is_present && d->slots[entry + 2].is_unknown) {
                d->top = top;  /* a number that the closed enum lacks: the entry is unknown */
                continue;
            }
            d->slots[entry].last = entry;
            if (previous) d->slots[previous].next = entry;
            else first = entry;
            previous = entry;
            count++;
        } while (slot);
        if (count > 1) HR_TRY(hr_drop_duplicates(d, d->nodes[parts->children[0]].op, first, count));
        for (entry = first; entry; entry = d->slots[entry].next) {
            if (!d->slots[entry].last) continue;
            HR_TRY(hr_emit_part(d, parts->children[0], entry + 1));
            HR_TRY(hr_emit_part(d, parts->children[1], d->slots[entry].last + 2));
            HR_TRY(hr_room(entries));
            hr_appended(entries);
        }
        d->top = base;
    }
    column->offsets[column->length + 1] = (int32_t)entries->length;
    hr_appended(column);
    return 0;
}

/* ---- messages ---- */

/* Append the fields of a message, whose first occurrence is in a slot; -1: an empty message. */
static int hr_emit_fields(hr_decoder *d, int32_t index, int32_t slot) {
    const hr_node *message = &d->nodes[index];
    int32_t base, i;
    HR_TRY(hr_push(d, message->child_count + message->size, &base));
    if (slot >= 0) HR_TRY(hr_scan(d, index, slot, base));
    for (i = 0; i < message->child_count; i++) {
        int32_t child = message->children[i];
        const hr_node *field = &d->nodes[child];
        if (HR_LIKELY(d->slots[base + i].is_present)) {
            if (field->op != OP_SKIP) HR_TRY(hr_emit(d, child, base + i));
        } else if (field->op == OP_LIST || field->op == OP_MAP) {
            HR_TRY(hr_emit(d, child, -1));
        } else if (field->op == OP_SKIP) {
            continue;
        } else if (HR_PRESENCE(field) == PRESENCE_EXPLICIT) {
            HR_TRY(hr_append_null(d->columns, field->column));
        } else if (HR_PRESENCE(field) == PRESENCE_REQUIRED) {
            d->failed_node = child;
            if (slot >= 0) d->at = d->slots[slot].data;
            return ERROR_REQUIRED;
        } else {
            HR_TRY(hr_emit(d, child, -1));
        }
    }
    d->top = base;
    if (message->column >= 0) {
        HR_TRY(hr_room(&d->columns[message->column]));
        hr_appended(&d->columns[message->column]);
    }
    return 0;
}

/* Append the value in a slot to its column; -1: the default. */
static int hr_emit_node(hr_decoder *d, int32_t index, int32_t slot) {
    const hr_node *node = &d->nodes[index];
    hr_column *column = node->column >= 0 ? &d->columns[node->column] : NULL;
    uint64_t value = slot >= 0 ? d->slots[slot].value : 0;
    const uint8_t *data = slot >= 0 ? d->slots[slot].data : NULL;
    int64_t wide;
    switch (node->op) {
    case OP_BOOLEAN:
        HR_TRY(hr_room(column));
        column->data[column->length] = value != 0;
        hr_appended(column);
        return 0;
    case OP_INT32: {
        uint32_t narrow = (uint32_t)value;
        return hr_append_fixed(column, &narrow, 4);
    }
    case OP_INT64:
        return hr_append_fixed(column, &value, 8);
    case OP_UINT32:
        wide = (int64_t)(uint32_t)value;
        return hr_append_fixed(column, &wide, 8);
    case OP_UINT64: {
        uint64_t halves[2];
        halves[0] = value;
        halves[1] = 0;
        return hr_append_fixed(column, halves, 16);
    }
    case OP_SINT32: {
        uint32_t bits = (uint32_t)value, narrow = (bits >> 1) ^ (0U - (bits & 1));
        return hr_append_fixed(column, &narrow, 4);
    }
    case OP_SINT64:
        value = (value >> 1) ^ (0ULL - (value & 1));
        return hr_append_fixed(column, &value, 8);
    case OP_ENUM: case OP_CLOSED_ENUM:
        return hr_emit_enum(d, node, column, slot >= 0 ? (int32_t)value : node->children[1]);
    case OP_STRING: case OP_BYTES:
        if (node->op == OP_STRING && HR_UNLIKELY(!hr_is_utf8(data, (int64_t)value))) {
            d->at = data;
            return ERROR_UTF8;
        }
        return hr_append_bytes(column, data, (int64_t)value);
    case OP_MESSAGE:
        return hr_emit_fields(d, node->children[0], slot);
    case OP_OPAQUE:
        return hr_emit_opaque(d, column, slot);
    case OP_TIME:
        return hr_emit_time(d, node, column, slot);
    case OP_DECIMAL:
        return hr_emit_decimal(d, node, column, slot);
    case OP_LIST:
        return hr_emit_list(d, node, column, slot);
    case OP_MAP:
        return hr_emit_map(d, node, column, slot);
    case OP_FIELDS:
        return hr_emit_fields(d, index, slot);
    }
    return ERROR_TAG;
}

static int hr_emit(hr_decoder *d, int32_t index, int32_t slot) {
    int code = hr_emit_node(d, index, slot);
    if (HR_UNLIKELY(code != 0) && d->failed_node < 0) d->failed_node = index;
    return code;
}

static int hr_decode(hr_decoder *d, int32_t index) {
    hr_slot *row = &d->slots[0];
    memset(row, 0, sizeof(hr_slot));
    row->data = d->at;
    row->value = (uint64_t)(d->end - d->at);
    row->is_present = 1;
    return hr_emit(d, index, 0);
}

#endif
