// Numbers from the page's data, and files to download: .npy arrays in an uncompressed .zip, which is what .npz is.
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const floatsOf = (text) => text === null || text === undefined ? null : new Float32Array(bytesOf(text).buffer);

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n >>> 0;
});
const crc32 = (bytes) => {
  let c = 0xffffffff;
  for (const b of bytes) c = CRC[(c ^ b) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
};

const joined = (parts) => {
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const part of parts) { all.set(part, at); at += part.length; }
  return all;
};

// An array of NumPy's format 1.0; `values` is a typed array, whose kind is the array's.
const npy = (values, shape) => {
  const kind = { Float32Array: "<f4", Float64Array: "<f8", Int32Array: "<i4" }[values.constructor.name];
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  let head = `{'descr': '${kind}', 'fortran_order': False, 'shape': ${tuple}, }`;
  head += " ".repeat(63 - ((10 + head.length) % 64)) + "\n";
  const text = new TextEncoder().encode(head);
  const magic = Uint8Array.of(0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, text.length & 255, text.length >> 8);
  return joined([magic, text, new Uint8Array(values.buffer)]);
};

const zip = (files) => {
  const little = (...pairs) => Uint8Array.from(pairs.flatMap(([value, size]) =>
    Array.from({ length: size }, (_, k) => (value >>> (8 * k)) & 255)));
  const parts = [], entries = [];
  let at = 0;
  for (const [name, content] of Object.entries(files)) {
    const label = new TextEncoder().encode(name), sum = crc32(content);
    const common = [[20, 2], [0, 2], [0, 2], [0, 2], [0x21, 2], [sum, 4], [content.length, 4], [content.length, 4], [label.length, 2], [0, 2]];
    const local = joined([little([0x04034b50, 4], ...common), label, content]);
    entries.push(joined([little([0x02014b50, 4], [20, 2], ...common, [0, 2], [0, 2], [0, 2], [0, 4], [at, 4]), label]));
    parts.push(local);
    at += local.length;
  }
  const central = joined(entries), count = entries.length;
  return joined([...parts, central, little([0x06054b50, 4], [0, 4], [count, 2], [count, 2], [central.length, 4], [at, 4], [0, 2])]);
};

const save = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
