// Numbers of 16 bits, as the doubles of NVIDIA's libraries keep them in memory.
#pragma once
#include <stdint.h>
#include <string.h>

static float widen(uint16_t bits, bool isFloat16) {
  if (isFloat16) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
  }
  uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, 4);
  return value;
}
/** The nearest float16 or bfloat16; NaN stays NaN. */
static uint16_t narrow(float value, bool isFloat16) {
  if (isFloat16) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
  }
  uint32_t word;
  memcpy(&word, &value, 4);
  return value != value ? (uint16_t)(word >> 16 | 0x40) : (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
