// What the model looked at when it wrote a note, by layer and head, in a musician's words.
export const VOICES = ["soprano", "alto", "tenor", "bass"];
const BEAT = 4;

function numbers(base64, kind) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new kind(bytes.buffer);
}

function distance(steps, barSteps) {
  if (steps === 0) return "at the same time";
  for (const [length, name] of [[barSteps, "bar"], [BEAT, "beat"]]) {
    if (steps % length === 0) return steps === length ? `one ${name} back` : `${steps / length} ${name}s back`;
  }
  return steps === 1 ? "one sixteenth back" : `${steps} sixteenths back`;
}

export class Attention {
  /** Token 4 t + v is voice v at step t; back[layer, head, token, rank] tokens before it lies what it looked at. */
  constructor(tune) {
    const { layers, heads, ranks, tokens, back, shares } = tune.attended;
    Object.assign(this, { tune, layers, heads, ranks, tokens });
    this.back = numbers(back, Uint16Array);
    this.shares = numbers(shares, Uint8Array);
  }

  /** [{token, share}] of one head, the largest share first; share is of 1. */
  of(layer, head, token) {
    const at = ((layer * this.heads + head) * this.tokens + token) * this.ranks;
    const found = [];
    for (let rank = 0; rank < this.ranks; rank += 1) {
      const share = this.shares[at + rank] / 255;
      if (share > 0) found.push({ token: token - this.back[at + rank], share });
    }
    return found;
  }

  words(token, looked) {
    const steps = Math.floor(token / 4) - Math.floor(looked.token / 4);
    const voice = looked.token % 4 === token % 4 ? "the same voice" : VOICES[looked.token % 4];
    return `${voice}, ${distance(steps, this.tune.barSteps)}`;
  }
}
