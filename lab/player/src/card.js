// A tune's card: its title, its roll, what plays it, and what its notes look at.
import { Attention, VOICES } from "./attention.js";
import { Roll } from "./roll.js";
import { render, seconds, sound, wav } from "./sound.js";

function make(parent, name, properties) {
  const element = Object.assign(document.createElement(name), properties);
  parent.append(element);
  return element;
}

function clock(time) {
  return `${Math.floor(time / 60)}:${String(Math.floor(time % 60)).padStart(2, "0")}`;
}

export class Card {
  /** onPlay(card): this one plays now, so the others must not. */
  constructor(tune, onPlay) {
    this.tune = tune;
    this.onPlay = onPlay;
    this.sounding = VOICES.map(() => true);
    this.at = 0;
    this.playing = false;
    this.attention = tune.attended ? new Attention(tune) : null;
    this.layer = this.attention ? this.attention.layers - 1 : 0;
    this.element = document.createElement("section");
    this.element.className = "tune";
    make(this.element, "h3", { textContent: tune.title });
    if (tune.words) make(this.element, "p", { className: "soft", textContent: tune.words });
    this.roll = new Roll(tune, (step) => this.seek(step * tune.stepSeconds), (number) => this.point(number));
    this.element.append(this.roll.element);
    this.controls();
    if (this.attention) this.looking();
    this.element.addEventListener("keydown", (event) => {
      if (event.key === " " && event.target === this.element) {
        event.preventDefault();
        this.toggle();
      }
    });
    this.element.tabIndex = 0;
    this.show();
  }

  controls() {
    const row = make(this.element, "div", { className: "controls" });
    this.button = make(row, "button", { type: "button", className: "play", onclick: () => this.toggle() });
    this.slider = make(row, "input", { type: "range", min: 0, max: seconds(this.tune), step: 0.01 });
    this.slider.setAttribute("aria-label", "position in seconds");
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    this.time = make(row, "span", { className: "time" });
    VOICES.forEach((voice, number) => {
      const button = make(row, "button", { type: "button", className: `voice voice${number}`, textContent: voice });
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => this.hear(number, button));
    });
    const save = make(row, "button", { type: "button", className: "save", textContent: "save as WAV" });
    save.addEventListener("click", () => this.save(save));
  }

  looking() {
    const row = make(this.element, "div", { className: "layers" });
    make(row, "span", { className: "soft", textContent: "point at a note: what it looks at, in layer" });
    const buttons = Array.from({ length: this.attention.layers }, (_, layer) => {
      const button = make(row, "button", { type: "button", textContent: String(layer + 1) });
      button.addEventListener("click", () => choose(layer));
      return button;
    });
    const choose = (layer) => {
      this.layer = layer;
      buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(number === layer)));
    };
    choose(this.layer);
    this.looks = make(this.element, "ul", { className: "looks" });
    this.looks.setAttribute("aria-live", "polite");
  }

  async toggle() {
    if (this.playing) return this.pause();
    this.onPlay(this);
    if (this.at >= seconds(this.tune)) this.at = 0;
    this.playing = true;
    this.show();
    await sound.play(this.tune, this.sounding, this.at);
    requestAnimationFrame(() => this.tick());
    return undefined;
  }

  tick() {
    if (!this.playing) return;
    this.at = Math.min(sound.seconds, seconds(this.tune));
    if (this.at >= seconds(this.tune)) this.pause();
    this.show();
    requestAnimationFrame(() => this.tick());
  }

  pause() {
    if (this.playing) sound.stop();
    this.playing = false;
    this.show();
  }

  async seek(time) {
    this.at = Math.max(0, Math.min(time, seconds(this.tune)));
    this.show();
    if (this.playing) await sound.play(this.tune, this.sounding, this.at);
  }

  hear(voice, button) {
    this.sounding[voice] = !this.sounding[voice];
    button.setAttribute("aria-pressed", String(this.sounding[voice]));
    if (this.playing) sound.hear(voice, this.sounding[voice]);
    this.roll.notes.forEach((note, number) => {
      note.classList.toggle("muted", !this.sounding[this.tune.notes[number][3]]);
    });
  }

  async save(button) {
    button.disabled = true;
    const url = URL.createObjectURL(wav(await render(this.tune, this.sounding)));
    make(this.element, "a", { href: url, download: `${this.tune.file}.wav`, hidden: true }).click();
    button.disabled = false;
  }

  /** Show what the note was chosen by, or nothing. */
  point(number) {
    if (!this.attention) return;
    this.looks.replaceChildren();
    if (number === null) return this.roll.look(null, []);
    const [step, , , voice] = this.tune.notes[number];
    const token = 4 * step + voice;
    const shares = new Map();
    for (let head = 0; head < this.attention.heads; head += 1) {
      const found = this.attention.of(this.layer, head, token);
      found.forEach((one) => shares.set(one.token, Math.max(one.share, shares.get(one.token) ?? 0)));
      const told = found.map((one) => `${this.attention.words(token, one)} (${Math.round(100 * one.share)} %)`);
      make(this.looks, "li", { textContent: `head ${head + 1}: ${told.join("; ") || "the beginning"}` });
    }
    const boxes = [...shares].map(([looked, share]) => ({ note: this.sounds(looked), share }));
    return this.roll.look(number, boxes.filter((box) => box.note));
  }

  /** The note that sounds at a token, or undefined in a rest. */
  sounds(token) {
    const step = Math.floor(token / 4);
    return this.tune.notes.find(([first, end, , voice]) => voice === token % 4 && first <= step && step < end);
  }

  show() {
    this.element.dataset.state = this.playing ? "playing" : "paused";
    this.button.textContent = this.playing ? "❚❚" : "▶";
    this.button.setAttribute("aria-label", this.playing ? "pause" : "play");
    this.slider.value = this.at;
    this.time.textContent = `${clock(this.at)} / ${clock(seconds(this.tune))}`;
    this.roll.place(this.at / this.tune.stepSeconds);
  }
}
