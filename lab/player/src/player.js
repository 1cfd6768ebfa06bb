// The player of relattn's music pages: one card for each tune, with its piano roll, and one sound for all of them.
import { Card } from "./card.js";
import { render } from "./sound.js";

const cards = [];

for (const holder of document.querySelectorAll("script[type='application/json'].relattn-tunes")) {
  const tunes = JSON.parse(holder.textContent);
  for (const tune of tunes) {
    const card = new Card(tune, (playing) => cards.filter((other) => other !== playing).forEach((other) => other.pause()));
    cards.push(card);
    holder.before(card.element);
  }
}

// What the page's own test listens to: the samples of a tune, mono, and their rate.
window.relattnPlayer = { render: (index) => render(cards[index].tune, cards[index].sounding) };
