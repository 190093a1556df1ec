/* Doubles from and to decimal text, correctly rounded, without the GIL and independent of the locale.

   From text: exact arithmetic of doubles where it is exact (Clinger), else a product with a power of ten of 128 bits
   (Eisel and Lemire), else the C library, in the locale "C". To text: the shortest digits that give the same number, and
   of these the nearest (Schubfach, Giulietti), written as Python's repr does. */

#ifndef HEADRACE_JSON_FLOATS_H
#define HEADRACE_JSON_FLOATS_H

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#include "codec.h"

#define HR_POWER_MIN (-343)
#define HR_POWER_MAX 324
#define HR_POWER_COUNT (HR_POWER_MAX - HR_POWER_MIN + 1)

/* Powers of ten: the first 128 bits, rounded down, high word first. The compiled module fills it when it is imported. */
static uint64_t hr_powers[HR_POWER_COUNT][2];
static locale_t hr_c_locale;

static int hr_start_floats(void) {
    hr_c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return hr_c_locale == (locale_t)0;
}

static inline int hr_floor_log2_pow10(int e) { return (e * 1741647) >> 19; }

/* Round mantissa * 10^exponent; returns 0 if the 128 bits of the power do not tell. */
static int hr_eisel_lemire(uint64_t mantissa, int64_t exponent, double *value) {
    hr_uint128 product, lower;
    uint64_t high, low, bits, msb;
    int zeros;
    int64_t binary;
    if (exponent < HR_POWER_MIN || exponent > 308) return 0;
    zeros = __builtin_clzll(mantissa);
    mantissa <<= zeros;
    product = (hr_uint128)mantissa * hr_powers[exponent - HR_POWER_MIN][0];
    high = (uint64_t)(product >> 64);
    low = (uint64_t)product;
    if ((high & 0x1FF) == 0x1FF && low + mantissa < mantissa) {
        lower = (hr_uint128)mantissa * hr_powers[exponent - HR_POWER_MIN][1];
        product += lower >> 64;
        high = (uint64_t)(product >> 64);
        low = (uint64_t)product;
        if ((high & 0x1FF) == 0x1FF && low + 1 == 0 && (uint64_t)lower + mantissa < mantissa) return 0;
    }
    msb = high >> 63;
    bits = high >> (msb + 9);
    binary = hr_floor_log2_pow10((int)exponent) + 64 + 1023 - zeros - (int64_t)(1 ^ msb);
    if (low == 0 && (high & 0x1FF) == 0 && (bits & 3) == 1) return 0;  /* halfway */
    bits = (bits + (bits & 1)) >> 1;
    if (bits >> 53) {
        bits >>= 1;
        binary++;
    }
    if (binary < 1 || binary > 2046) return 0;  /* subnormal or too large */
    bits = (uint64_t)binary << 52 | (bits & 0xFFFFFFFFFFFFFULL);
    memcpy(value, &bits, 8);
    return 1;
}

static int hr_to_double(const hr_number *number, double *value) {
    static const double tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                  1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    char text[HR_NUMBER_CHARS_MAX + 1];
    double other;
    if (number->is_exact) {
        if (number->mantissa == 0) {
            *value = number->is_negative ? -0.0 : 0.0;
            return 0;
        }
        if (number->mantissa <= 1ULL << 53 && number->exponent >= -22 && number->exponent <= 22) {
            *value = (double)number->mantissa;
            if (number->exponent < 0) *value /= tens[-number->exponent];
            else *value *= tens[number->exponent];
            if (number->is_negative) *value = -*value;
            return 0;
        }
        if (HR_LIKELY(hr_eisel_lemire(number->mantissa, number->exponent, value))) {
            if (number->is_negative) *value = -*value;
            return 0;
        }
    } else if (hr_eisel_lemire(number->mantissa, number->exponent, value)
               && hr_eisel_lemire(number->mantissa + 1, number->exponent, &other) && *value == other) {
        if (number->is_negative) *value = -*value;
        return 0;
    }
    memcpy(text, number->start, (size_t)number->size);
    text[number->size] = 0;
    *value = strtod_l(text, NULL, hr_c_locale);
    return isinf(*value) ? ERROR_NUMBER : 0;
}

/* ---- to text ---- */

static uint64_t hr_round_to_odd(const uint64_t power[2], uint64_t factor) {
    hr_uint128 low = (hr_uint128)power[1] * factor, high = (hr_uint128)power[0] * factor;
    high += low >> 64;
    return (uint64_t)(high >> 64) | ((uint64_t)high > 1);
}

/* The shortest digits of c * 2^q, and the exponent of the last; `is_narrow`: the number below is nearer than that above. */
static uint64_t hr_shortest(uint64_t c, int q, int is_narrow, int *exponent) {
    int k = (q * 1262611 - (is_narrow ? 524031 : 0)) >> 22;
    int h = q + hr_floor_log2_pow10(-k) + 1, is_odd = (int)(c & 1);
    uint64_t power[2], lower, middle, upper, s;
    power[0] = hr_powers[-k - HR_POWER_MIN][0];
    power[1] = hr_powers[-k - HR_POWER_MIN][1];
    if (-k < 0 || -k > 55) power[0] += ++power[1] == 0;  /* rounded up, unless it is exact */
    lower = hr_round_to_odd(power, (4 * c - 2 + (uint64_t)is_narrow) << h) + (uint64_t)is_odd;
    middle = hr_round_to_odd(power, 4 * c << h);
    upper = hr_round_to_odd(power, (4 * c + 2) << h) - (uint64_t)is_odd;
    s = middle / 4;
    if (s >= 10) {
        uint64_t tens = s / 10;
        int is_low_inside = lower <= 40 * tens, is_high_inside = 40 * tens + 40 <= upper;
        if (is_low_inside != is_high_inside) {
            *exponent = k + 1;
            return tens + (uint64_t)is_high_inside;
        }
    }
    *exponent = k;
    {
        int is_low_inside = lower <= 4 * s, is_high_inside = 4 * s + 4 <= upper;
        if (is_low_inside != is_high_inside) return s + (uint64_t)is_high_inside;
    }
    return s + (uint64_t)(middle > 4 * s + 2 || (middle == 4 * s + 2 && (s & 1)));
}

static const char hr_pairs[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849505152535455"
    "5657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/* Write a number; returns how many digits. `out` has room for 20. */
static int hr_put_digits(uint8_t *out, uint64_t value) {
    uint8_t digits[20];
    int at = 20;
    while (value >= 100) {
        at -= 2;
        memcpy(digits + at, hr_pairs + value % 100 * 2, 2);
        value /= 100;
    }
    if (value >= 10) {
        at -= 2;
        memcpy(digits + at, hr_pairs + value * 2, 2);
    } else {
        digits[--at] = (uint8_t)('0' + value);
    }
    memcpy(out, digits + at, (size_t)(20 - at));
    return 20 - at;
}

#define HR_FLOAT_CHARS_MAX 32

/* Write digits * 10^exponent as repr does; returns how many characters. */
static int hr_put_float_digits(uint8_t *out, int is_negative, uint64_t value, int exponent) {
    uint8_t digits[20], *p = out;
    int count, point, i;
    while (value % 10 == 0) {
        value /= 10;
        exponent++;
    }
    count = hr_put_digits(digits, value);
    point = count + exponent;  /* digits before the decimal point */
    if (is_negative) *p++ = '-';
    if (point > 16 || point <= -4) {
        *p++ = digits[0];
        if (count > 1) {
            *p++ = '.';
            memcpy(p, digits + 1, (size_t)(count - 1));
            p += count - 1;
        }
        *p++ = 'e';
        *p++ = point > 0 ? '+' : '-';
        i = point > 0 ? point - 1 : 1 - point;
        if (i < 10) *p++ = '0';
        p += hr_put_digits(p, (uint64_t)i);
    } else if (point <= 0) {
        *p++ = '0';
        *p++ = '.';
        for (i = point; i < 0; i++) *p++ = '0';
        memcpy(p, digits, (size_t)count);
        p += count;
    } else {
        for (i = 0; i < point; i++) *p++ = i < count ? digits[i] : '0';
        *p++ = '.';
        if (count > point) {
            memcpy(p, digits + point, (size_t)(count - point));
            p += count - point;
        } else {
            *p++ = '0';
        }
    }
    return (int)(p - out);
}

/* Write a double or, with its own shortest digits, a float; returns how many characters, 0 for NaN and infinity. */
static int hr_put_float(uint8_t *out, const uint8_t *data, int width) {
    int is_negative, exponent, is_double = width == 8;
    uint64_t fraction, digits;
    int biased;
    if (is_double) {
        uint64_t bits;
        memcpy(&bits, data, 8);
        is_negative = (int)(bits >> 63);
        biased = (int)(bits >> 52 & 0x7FF);
        fraction = bits & 0xFFFFFFFFFFFFFULL;
    } else {
        uint32_t bits;
        memcpy(&bits, data, 4);
        is_negative = (int)(bits >> 31);
        biased = (int)(bits >> 23 & 0xFF);
        fraction = bits & 0x7FFFFF;
    }
    if (biased == (is_double ? 0x7FF : 0xFF)) return 0;
    if (biased == 0 && fraction == 0) {
        memcpy(out, is_negative ? "-0.0" : "0.0", is_negative ? 4 : 3);
        return is_negative ? 4 : 3;
    }
    if (biased == 0)
        digits = hr_shortest(fraction, is_double ? -1074 : -149, 0, &exponent);
    else
        digits = hr_shortest(fraction | (is_double ? 1ULL << 52 : 1ULL << 23), biased - (is_double ? 1075 : 150),
                             fraction == 0 && biased > 1, &exponent);
    return hr_put_float_digits(out, is_negative, digits, exponent);
}

#endif
