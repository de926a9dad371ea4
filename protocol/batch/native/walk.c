/* Walk the records of a batch in compiled code. `protocol.batch.walk` calls this, and has the same
 * in Python.
 *
 * Reads no byte outside [data, data + size): what is left is compared before every read. Writes
 * only to the job, which has FIRST + 2 * job[ERRORS_MAX] elements. Freestanding: no libc, no
 * allocation, no state. `make kernels` compiles it for every platform.
 */
#include <stdint.h>

enum { DONE, BAD_NUMBER, BAD_LENGTH, BAD_FIELD, BAD_HEADER_COUNT, BAD_HEADER_NAME, BAD_END,
       BAD_DELTA, BAD_COUNT, BAD_REST };
enum { NEEDS_KEYS = 1, IGNORES_TIMES = 2, SEQUENTIAL = 4 };
/* The job: what is given, then what is found, then pairs for the errors of records. */
enum { DATA, SIZE, COUNT, BASE_MS, LOW_MS, HIGH_MS, FLAGS, ERRORS_MAX,
       INDEX, MAX_TIMESTAMP, ERRORS, FIRST, MOST_BYTES = INDEX, BEFORE_BYTES = MAX_TIMESTAMP };
enum { LZ4_RATIO_MAX = 255, AHEAD = 32 /* records */, LINE_BYTES = 64,
       EQUAL_MIN = 8 /* records */ };

typedef const uint8_t *bytes;

/* Parse an unsigned number; NULL if it does not fit into `bits` or has no end. */
static inline bytes number(bytes at, bytes end, int bits, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    uint64_t found = 0;
    for (int shift = 0; shift < bits && at < end; shift += 7) {
        uint64_t byte = *at++;
        found |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            if (shift + 7 > bits && byte >> (bits - shift)) return 0;
            *value = found;
            return at;
        }
    }
    return 0;
}

static inline int64_t zigzag(uint64_t value) {
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* Skip a nullable field: NULL if its length is not a number, or, with `error`, too high. */
static inline bytes field(bytes at, bytes end, int64_t *length, int *error) {
    uint64_t value;
    at = number(at, end, 32, &value);
    if (!at) {
        *error = BAD_NUMBER;
        return 0;
    }
    *length = zigzag(value);
    if (*length <= 0) return at;
    if (*length > end - at) {
        *error = BAD_FIELD;
        return 0;
    }
    return at + *length;
}

static int headers(bytes at, bytes end, int64_t count) {
    int error = DONE;
    int64_t length;
    while (count-- > 0) {
        if (!(at = field(at, end, &length, &error))) return error;
        if (length < 0) return BAD_HEADER_NAME;
        if (!(at = field(at, end, &length, &error))) return error;
    }
    return at == end ? DONE : BAD_END;
}

/* What a walk is given, and what it has found. */
typedef struct {
    bytes at, stop;
    int64_t index, count, base_ms, low_ms, high_ms, flags, newest, errors;
    int64_t *job;
    /* For `simple_record` and `common_record`: whether they can be used, and the timestamps that
     * they accept, as deltas. */
    int has_common, can_be_null, error;
    bytes safe;
    int64_t low, newest_delta;
    uint64_t range, most_ms;
} walk;

/* Take one record of any kind, or say what is wrong with it. */
static __attribute__((noinline)) int any_record(walk *walk) {
    bytes at = walk->at, stop = walk->stop;
    uint64_t value;
    int64_t length, key_length;
    int error = DONE;
    if (at == stop) return BAD_COUNT;
    if (!(at = number(at, stop, 32, &value))) return BAD_NUMBER;
    length = zigzag(value);
    if (length < 1 || length > stop - at) return BAD_LENGTH;
    bytes end = at + length;
    at++; /* attributes, which are not used */
    if (!(at = number(at, end, 64, &value))) return BAD_NUMBER;
    int64_t delta_ms = zigzag(value), timestamp;
    if (!(at = number(at, end, 32, &value))) return BAD_NUMBER;
    int64_t delta = zigzag(value);
    if ((walk->flags & SEQUENTIAL) ? delta != walk->index : delta < 0 || delta >= walk->count)
        return BAD_DELTA;
    if (!(at = field(at, end, &key_length, &error))) return error;
    if (!(at = field(at, end, &length, &error))) return error;
    if (!(at = number(at, end, 32, &value))) return BAD_NUMBER;
    int64_t header_count = zigzag(value);
    if (header_count < 0 || header_count > (end - at) / 2) return BAD_HEADER_COUNT;
    if ((error = headers(at, end, header_count))) return error;
    walk->at = end;
    int is_outside = __builtin_add_overflow(walk->base_ms, delta_ms, &timestamp);
    if (is_outside) timestamp = delta_ms < 0 ? INT64_MIN : INT64_MAX;
    if (timestamp > walk->newest) walk->newest = timestamp;
    if (!(walk->flags & IGNORES_TIMES))
        is_outside |= timestamp != -1 && (timestamp < walk->low_ms || timestamp > walk->high_ms);
    else
        is_outside = 0;
    int is_keyless = (walk->flags & NEEDS_KEYS) && key_length < 0;
    if (is_outside || is_keyless) {
        if (walk->errors < walk->job[ERRORS_MAX]) {
            int64_t *place = walk->job + FIRST + 2 * walk->errors;
            place[0] = is_keyless ? -walk->index - 1 : walk->index;
            place[1] = timestamp;
        }
        walk->errors++;
    }
    return DONE;
}

enum { SHORT_BYTES = 3, SHORT_MS = 1 << 20 /* three bytes hold less than this */,
       HEAD_BYTES = 16 /* at least the numbers before a key, the attributes, and a word */ };

/* Parse a number of at most three bytes, which can be read; NULL if it is longer. */
static inline bytes short_number(bytes at, uint64_t *value) {
    uint64_t first = at[0], second, third;
    if (first < 0x80) {
        *value = first;
        return at + 1;
    }
    if ((second = at[1]) < 0x80) {
        *value = first + (second << 7) - 0x80;
        return at + 2;
    }
    if ((third = at[2]) >= 0x80) return 0;
    *value = first + (second << 7) + (third << 14) - 0x4080;
    return at + 3;
}

/* Skip a nullable field; NULL if it is not short, or ends behind `end`. */
static inline bytes short_field(bytes at, bytes end, int can_be_null) {
    uint64_t value;
    if (end - at < SHORT_BYTES || !(at = short_number(at, &value))) return 0;
    if (value & 1) return value == 1 && can_be_null ? at : 0;
    return (int64_t)(value >> 1) <= end - at ? at + (value >> 1) : 0;
}

/* Take one record that is sound, breaks no rule and has only short numbers, as nearly all have.
 * NULL for others, which `any_record` looks at again. Takes half the time, because it compares
 * little: HEAD_BYTES can be read at `safe` and before it; `at` may lie up to 1 MiB behind `stop`
 * until it is compared. Timestamps are compared as deltas, in [low, low + range]. */
static inline bytes common_record(bytes at, bytes stop, bytes safe, int64_t index, int can_be_null,
                                  int64_t low, uint64_t range, int64_t *newest) {
    uint64_t length, delta_ms, delta, size, header_count;
    if (at > safe || !(at = short_number(at, &length))) return 0;
    length = length >> 1 | length << 63; /* negative ones become too high */
    if (length > (uint64_t)(stop - at)) return 0;
    bytes end = at + length;
    at++;
    if (!(at = short_number(at, &delta_ms)) || !(at = short_number(at, &delta))) return 0;
    if (delta != (uint64_t)index << 1 || !(at = short_number(at, &size))) return 0;
    if (!(size & 1)) at += size >> 1;
    else if (size != 1 || !can_be_null) return 0;
    if (at > safe || !(at = short_number(at, &size))) return 0;
    if (size & 1) {
        if (size != 1) return 0;
        size = 0;
    }
    at += size >> 1;
    if (at >= end) return 0;
    header_count = *at++;
    if (header_count) {
        if (header_count & 0x81) return 0;
        for (; header_count; header_count -= 2)
            if (!(at = short_field(at, end, 0)) || !(at = short_field(at, stop, 1))) return 0;
    }
    if (at != end) return 0;
    int64_t ms = zigzag(delta_ms);
    if ((uint64_t)(ms - low) > range) return 0;
    if (ms > *newest) *newest = ms;
    return end; /* not `at`: the next record need not wait for these fields */
}

/* Take a record of any kind. NULL with `walk->error` if it is not sound. */
static __attribute__((noinline)) bytes other_record(walk *walk, bytes at, int64_t index) {
    bytes next = 0;
    if (walk->has_common)
        next = common_record(at, walk->stop, walk->safe, index, walk->can_be_null, walk->low,
                             walk->range, &walk->newest_delta);
    if (next) return next;
    walk->at = at;
    walk->index = index;
    walk->error = any_record(walk);
    return walk->error ? 0 : walk->at;
}

/* Read bytes as a number, the first as the lowest: every platform is little-endian. */
static inline uint64_t word(bytes at) {
    uint64_t found;
    __builtin_memcpy(&found, at, sizeof found);
    return found;
}

static inline uint64_t half_word(bytes at) {
    uint16_t found;
    __builtin_memcpy(&found, at, sizeof found);
    return found;
}

#define LIKELY(condition) __builtin_expect(!!(condition), 1)

/* The last record with a length of two bytes, and how many before it had the same length. */
typedef struct {
    uint64_t length;
    int64_t size_bytes, equal_count;
} previous;

/* Take one record as nearly all batches consist of: below 8 KB, not older than the first, with a
 * key below 64 bytes or none, a value and no headers. NULL for others, which `other_record` looks
 * at. `delta` are the bytes of its offset delta. Takes two thirds of the time of `common_record`,
 * because it compares the size of the value with what is left instead of reading it. */
static inline __attribute__((always_inline)) bytes
simple_record(bytes at, bytes safe, uint64_t delta, const int delta_bytes, int can_be_null,
              uint64_t most_ms, int64_t *newest, previous *previous) {
    if (at > safe) return 0;
    uint64_t head = word(at), length = head >> 1 & 0x3F, ms, size;
    bytes end;
    if (previous->equal_count >= EQUAL_MIN && LIKELY((head & 0xFFFF) == previous->length)) {
        /* The CPU predicts this branch, so the next record need not wait for this length. */
        end = at + previous->size_bytes;
        head >>= 8;
        at++;
    } else if (head & 1) {
        return 0;
    } else if (LIKELY(head & 0x80)) {
        if (head & 0x8000) return 0;
        end = at + (length | (head >> 2 & 0x1FC0)) + 2;
        int is_equal = previous->length == (head & 0xFFFF);
        previous->equal_count = is_equal ? previous->equal_count + 1 : 0;
        previous->length = head & 0xFFFF;
        previous->size_bytes = end - at;
        head >>= 8;
        at++;
    } else {
        end = at + length + 1;
    }
    if (end > safe) return 0;
    ms = head >> 16 & 0x7F;
    at += 3;
    if (LIKELY(head & 0x800000)) {
        ms |= head >> 17 & 0x3F80;
        at++;
        if (!LIKELY(!(head & 0x80000000))) {
            if (head & 0x8000000000) return 0;
            ms |= head >> 18 & 0x1FC000;
            at++;
        }
    }
    ms = ms >> 1 | ms << 63; /* negative ones become too high */
    if (ms > most_ms) return 0;
    head = word(at);
    if ((head & (((uint64_t)1 << 8 * delta_bytes) - 1)) != delta) return 0;
    size = head >> 8 * delta_bytes & 0xFF;
    at += delta_bytes + 1;
    if (LIKELY(!(size & 0x81))) at += size >> 1;
    else if (size != 1 || !can_be_null) return 0;
    int64_t left = end - at;
    if (left < 3) return 0;
    size = (uint64_t)(left - 3) << 1;
    if (half_word(at) != size + (size & 0x3F80) + 0x80)
        if (left > 0x3F + 2 || *at != (left - 2) << 1) return 0;
    if (end[-1]) return 0; /* the number of headers */
    if ((int64_t)ms > *newest) *newest = (int64_t)ms;
    return end;
}

/* Take records up to `until`, whose offset deltas have the same number of bytes. `delta` are those
 * of the first, and `high` the bits that all of them share. */
static inline __attribute__((always_inline)) bytes
records(walk *walk, bytes at, int64_t *index, int64_t until, uint64_t delta, const int delta_bytes,
        const uint64_t high) {
    int64_t newest = walk->newest_delta, here = *index;
    const uint64_t most_ms = walk->most_ms;
    const int can_be_null = walk->can_be_null;
    const bytes safe = walk->safe;
    previous previous = {0, 0, 0};
    if (until > walk->count) until = walk->count;
    for (; here < until; here++) {
        bytes next = simple_record(at, safe, delta, delta_bytes, can_be_null, most_ms, &newest,
                                   &previous);
        if (!LIKELY(next) && !(next = other_record(walk, at, here))) break;
        /* Where a record starts depends on the one before, so the CPU does not fetch it early. The
         * walk reads both ends of each record; with 100 bytes, these are two lines. */
        bytes later = next + AHEAD * (next - at);
        __builtin_prefetch(later);
        __builtin_prefetch(later + LINE_BYTES);
        at = next;
        delta = (delta + 2) | high; /* a carry leaves one byte, and enters the next */
    }
    if (newest > walk->newest_delta) walk->newest_delta = newest;
    *index = here;
    return at;
}

int64_t penstock_walk(int64_t *job) {
    walk walk = {.at = (bytes)job[DATA], .stop = (bytes)job[DATA] + job[SIZE],
                 .count = job[COUNT], .base_ms = job[BASE_MS], .low_ms = job[LOW_MS],
                 .high_ms = job[HIGH_MS], .flags = job[FLAGS], .newest = -1, .job = job,
                 .can_be_null = !(job[FLAGS] & NEEDS_KEYS), .newest_delta = INT64_MIN};
    int64_t first = 0, last = 0, index = 0;
    int has_common = !__builtin_sub_overflow(walk.base_ms, (int64_t)SHORT_MS, &first) &&
                     !__builtin_add_overflow(walk.base_ms, (int64_t)SHORT_MS, &last);
    if (!(walk.flags & IGNORES_TIMES)) {
        if (walk.low_ms > first) first = walk.low_ms;
        if (walk.high_ms < last) last = walk.high_ms;
    }
    bytes at = walk.at;
    walk.has_common = has_common && first <= last && job[SIZE] >= HEAD_BYTES;
    if (walk.has_common) {
        walk.safe = walk.stop - HEAD_BYTES;
        walk.low = first - walk.base_ms;
        walk.range = (uint64_t)(last - first);
        if (first <= walk.base_ms && walk.base_ms <= last) {
            walk.most_ms = (uint64_t)(last - walk.base_ms);
            at = records(&walk, at, &index, 1 << 6, 0, 1, 0);
            if (index == 1 << 6) at = records(&walk, at, &index, 1 << 13, 0x0180, 2, 0x80);
            if (index == 1 << 13) at = records(&walk, at, &index, 1 << 20, 0x018080, 3, 0x8080);
        }
    }
    while (index < walk.count && !walk.error) {
        bytes next = other_record(&walk, at, index);
        if (!next) break;
        at = next;
        index++;
    }
    job[INDEX] = index;
    if (walk.error) return walk.error;
    if (walk.newest_delta > INT64_MIN && walk.base_ms + walk.newest_delta > walk.newest)
        walk.newest = walk.base_ms + walk.newest_delta;
    job[MAX_TIMESTAMP] = walk.newest;
    job[ERRORS] = walk.errors;
    return at == walk.stop ? DONE : BAD_REST;
}

/* Return 0 if the bytes are one lz4 frame as Kafka reads it: version 1, independent blocks, no
 * dictionary, nothing behind the end mark. Does not check checksums. Finds the most bytes to which
 * it decompresses, and those of all blocks but the last. */
int64_t penstock_lz4_frame(int64_t *job) {
    bytes at = (bytes)job[DATA], stop = at + job[SIZE];
    if (stop - at < 7 || at[0] != 0x04 || at[1] != 0x22 || at[2] != 0x4D || at[3] != 0x18)
        return 1;
    int flags = at[4], sizes = at[5];
    /* Version, reserved bit, dictionary; then reserved bits and the least block size. */
    if ((flags & 0xC3) != 0x40 || !(flags & 0x20) || (sizes & 0x8F) || sizes < 0x40) return 1;
    int64_t head = flags & 0x08 ? 15 : 7, behind_block = flags & 0x10 ? 4 : 0;
    int64_t behind_frame = flags & 0x04 ? 4 : 0, block_max = (int64_t)256 << (sizes >> 3);
    if (stop - at < head) return 1;
    at += head;
    for (int64_t before = 0, most = 0; stop - at >= 4;) {
        uint32_t word = at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
        at += 4;
        if (!word) {
            job[MOST_BYTES] = most;
            job[BEFORE_BYTES] = before;
            return stop - at != behind_frame;
        }
        /* Java's clients take an uncompressed block of no bytes for the end of the frame. */
        if (word == 0x80000000) return 1;
        int64_t length = word & 0x7FFFFFFF, plain = word >> 31 ? length : LZ4_RATIO_MAX * length;
        if (length + behind_block > stop - at) return 1;
        at += length + behind_block;
        before = most;
        most += plain < block_max ? plain : block_max;
    }
    return 1;
}
