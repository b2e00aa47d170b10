// Terminal output as styled pieces of text. What a job prints never becomes markup: a piece is
// plain text with the names of classes, and colours beyond the 16 named ones are numbers.

const SEQUENCE = new RegExp(
  "\\u001b\\[([0-9;:]*)([@-~])" + // CSI with plain parameters; only `m` (SGR) means something here
    "|\\u001b\\[[0-?]*[ -/]*[@-~]?" + // any other CSI
    "|\\u001b\\][^\\u0007\\u001b]*(?:\\u0007|\\u001b\\\\)?" + // OSC: titles and links
    "|\\u001b[PX^_][^\\u001b]*(?:\\u001b\\\\)?" + // other strings
    "|\\u001b[ -/]*[0-~]?" +
    "|[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]",
  "g",
);
const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const ENDS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

export class Ansi {
  constructor(sequences = "") {
    this.reset();
    this.pieces(sequences);
  }

  copy() {
    const other = new Ansi();
    other.flags = new Set(this.flags);
    other.colours = { ...this.colours };
    return other;
  }

  reset() {
    this.flags = new Set();
    this.colours = { fg: null, bg: null };
  }

  // The pieces of one row: {text, classes, fg, bg}. The style goes on to the next row.
  pieces(row) {
    const text = afterReturn(row);
    const found = [];
    let from = 0;
    for (const match of text.matchAll(SEQUENCE)) {
      this.add(found, text.slice(from, match.index));
      from = match.index + match[0].length;
      if (match[2] === "m") this.apply(match[1]);
    }
    this.add(found, text.slice(from));
    return found;
  }

  add(found, text) {
    if (!text) return;
    const classes = [...this.flags].map((flag) => `ansi-${flag}`);
    const piece = { text, classes, fg: null, bg: null };
    for (const side of ["fg", "bg"]) {
      const colour = this.colours[side];
      if (typeof colour === "number") classes.push(`ansi-${side}-${colour}`);
      else piece[side] = colour;
    }
    found.push(piece);
  }

  apply(parameters) {
    // An empty parameter is a 0 (ECMA-48): `ESC[m` resets.
    const codes = parameters.split(/[;:]/).map((code) => Number(code || 0));
    for (let at = 0; at < codes.length; at++) {
      const code = codes[at];
      if (code === 0) this.reset();
      else if (FLAGS[code]) this.flags.add(FLAGS[code]);
      else if (ENDS[code]) ENDS[code].forEach((flag) => this.flags.delete(flag));
      else if (code >= 30 && code <= 37) this.colours.fg = code - 30;
      else if (code >= 90 && code <= 97) this.colours.fg = code - 82;
      else if (code >= 40 && code <= 47) this.colours.bg = code - 40;
      else if (code >= 100 && code <= 107) this.colours.bg = code - 92;
      else if (code === 39) this.colours.fg = null;
      else if (code === 49) this.colours.bg = null;
      else if (code === 38 || code === 48) {
        const side = code === 38 ? "fg" : "bg";
        if (codes[at + 1] === 5) this.colours[side] = palette(codes[at + 2]);
        if (codes[at + 1] === 2) this.colours[side] = rgb(codes.slice(at + 2, at + 5));
        at += codes[at + 1] === 5 ? 2 : 4;
      }
    }
  }
}

// A carriage return goes back to the beginning of the row: what follows replaces it.
function afterReturn(row) {
  const text = row.replace(/\r+$/, "");
  return text.slice(text.lastIndexOf("\r") + 1);
}

function palette(number) {
  if (!(number >= 0 && number <= 255)) return null;
  if (number < 16) return number;
  if (number >= 232) return rgb(Array(3).fill(8 + 10 * (number - 232)));
  const cube = number - 16;
  const levels = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6];
  return rgb(levels.map((level) => (level ? 55 + 40 * level : 0)));
}

function rgb(parts) {
  const valid = parts.length === 3 && parts.every((part) => part >= 0 && part <= 255);
  return valid ? `rgb(${parts.join(", ")})` : null;
}

export function element(piece, parts) {
  const span = document.createElement("span");
  span.append(...parts);
  span.classList.add(...piece.classes);
  if (piece.fg) span.style.color = piece.fg;
  if (piece.bg) span.style.backgroundColor = piece.bg;
  return span;
}
