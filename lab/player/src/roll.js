// A piano roll in SVG: time to the right, pitch upwards, a colour for each voice, the given bars shaded.
const NAMESPACE = "http://www.w3.org/2000/svg";
const STEP = 9;
const SEMITONE = 5;
const MARGIN = 3;
const TOP = 16;

function draw(parent, name, attributes, text) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

export class Roll {
  /** onSeek(step): the ground was clicked. onNote(number or null): a note is pointed at. */
  constructor(tune, onSeek, onNote) {
    this.tune = tune;
    const pitches = tune.notes.map((note) => note[2]);
    this.high = Math.max(72, ...pitches) + MARGIN;
    const low = Math.min(60, ...pitches) - MARGIN;
    this.height = TOP + (this.high - low) * SEMITONE;
    this.svg = document.createElementNS(NAMESPACE, "svg");
    this.svg.setAttribute("width", tune.steps * STEP);
    this.svg.setAttribute("height", this.height);
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", `piano roll of ${tune.title}`);
    this.ground();
    this.looked = draw(this.svg, "g", { class: "looked" });
    this.notes = tune.notes.map((note, number) => this.note(note, number, onNote));
    this.head = draw(this.svg, "line", { class: "head", x1: 0, x2: 0, y1: 0, y2: this.height });
    this.svg.addEventListener("click", (event) => {
      if (!event.target.classList.contains("note")) {
        onSeek((event.clientX - this.svg.getBoundingClientRect().left) / STEP);
      }
    });
    this.element = document.createElement("div");
    this.element.className = "roll";
    this.element.append(this.svg);
  }

  ground() {
    const { tune } = this;
    draw(this.svg, "rect", { class: "given", x: 0, y: 0, width: tune.given * STEP, height: this.height });
    for (let bar = tune.upbeat, number = 1; bar < tune.steps; bar += tune.barSteps, number += 1) {
      draw(this.svg, "line", { class: "bar", x1: bar * STEP, x2: bar * STEP, y1: 0, y2: this.height });
      draw(this.svg, "text", { x: bar * STEP + 3, y: 11 }, String(number));
    }
    if (tune.given) draw(this.svg, "text", { class: "label", x: 3, y: this.height - 4 }, "given");
  }

  box([first, end, pitch]) {
    const y = TOP + (this.high - pitch) * SEMITONE - SEMITONE / 2;
    return { x: first * STEP + 0.5, y, width: (end - first) * STEP - 1, height: SEMITONE + 1, rx: 2 };
  }

  note(note, number, onNote) {
    const element = draw(this.svg, "rect", { class: `note voice${note[3]}`, "data-note": number, ...this.box(note) });
    element.addEventListener("pointerenter", () => onNote(number));
    element.addEventListener("pointerleave", () => onNote(null));
    element.addEventListener("click", () => onNote(number));
    return element;
  }

  /** Move the head to a step; the roll follows. */
  place(step) {
    const x = step * STEP;
    this.head.setAttribute("x1", x);
    this.head.setAttribute("x2", x);
    const { scrollLeft, clientWidth } = this.element;
    if (x < scrollLeft || x > scrollLeft + 0.7 * clientWidth) this.element.scrollLeft = x - 0.3 * clientWidth;
    for (const [number, [first, end]] of this.tune.notes.entries()) {
      this.notes[number].classList.toggle("sounds", first <= step && step < end);
    }
  }

  /** Show where a note looks: boxes [first, end, pitch] with their shares of the attention. */
  look(number, boxes) {
    this.looked.replaceChildren();
    this.notes.forEach((note, other) => note.classList.toggle("chosen", other === number));
    for (const { note, share } of boxes) {
      const box = this.box(note);
      const grown = { x: box.x - 2, y: box.y - 2, width: box.width + 4, height: box.height + 4, rx: 4 };
      draw(this.looked, "rect", { ...grown, "fill-opacity": Math.min(1, 0.15 + share) });
    }
  }
}
