// Half-precision floats, which JavaScript has no array for in every browser.

/** All 65,536 values, by their bits. */
let values;

function table() {
  values ??= Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
    return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
  return values;
}

/** The numbers of a base64 text of little-endian half-precision floats. */
export function decodeFloat16(base64) {
  const bytes = atob(base64);
  const all = table();
  return Float32Array.from({ length: bytes.length / 2 }, (_, at) => all[bytes.charCodeAt(2 * at) | (bytes.charCodeAt(2 * at + 1) << 8)]);
}
