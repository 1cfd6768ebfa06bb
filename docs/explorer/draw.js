// A matrix of colours and a row of bars, as SVG. Each cell and bar says its number where the pointer rests.

"use strict";

const relattnDraw = (() => {
  const PAST = [31, 111, 178];
  const FUTURE = [209, 96, 44];

  const element = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };

  const signed = (number) => String(Number(number.toPrecision(3))).replace("-", "−");

  // Blue below 0, orange above, white at 0.
  const colour = (number, reach) => {
    const share = Math.min(1, Math.abs(number) / (reach || 1));
    const end = number < 0 ? PAST : FUTURE;
    return `rgb(${end.map((part) => Math.round(255 + share * (part - 255))).join(",")})`;
  };

  const reachOf = (numbers) => Math.max(1e-9, ...numbers.map(Math.abs));

  const say = (shape, text) => (element("title", {}, shape).textContent = text);

  // A square per number; `marked` is a row with a frame.
  const matrix = (svg, values, marked, said) => {
    const length = values.length;
    const reach = reachOf(values.flat());
    svg.replaceChildren();
    svg.setAttribute("viewBox", `-0.1 -0.1 ${length + 0.2} ${length + 0.2}`);
    values.forEach((row, i) =>
      row.forEach((number, j) => {
        const cell = element("rect", { x: j, y: i, width: 0.96, height: 0.96, fill: colour(number, reach) }, svg);
        say(cell, said(i, j, signed(number)));
      })
    );
    element("rect", { x: 0, y: marked, width: length, height: 1, class: "relattn-marked" }, svg);
    return reach;
  };

  // A bar per number, up from 0 or down. Names stand below, in equal steps from the bar `zero` on.
  const bars = (svg, numbers, zero, name, said) => {
    const high = Math.max(0, ...numbers);
    const height = high - Math.min(0, ...numbers) || 1;
    const reach = reachOf(numbers);
    const wide = 96 / numbers.length;
    const every = Math.ceil(numbers.length / 9);
    svg.replaceChildren();
    svg.setAttribute("viewBox", "0 -2 96 54");
    numbers.forEach((number, n) => {
      const y = ((high - Math.max(0, number)) / height) * 42;
      const size = Math.max(0.3, (Math.abs(number) / height) * 42);
      const bar = element("rect", { x: (n + 0.1) * wide, y, width: 0.8 * wide, height: size }, svg);
      bar.setAttribute("fill", colour(number, reach));
      bar.setAttribute("class", "relattn-bar");
      say(bar, said(n, signed(number)));
      if ((n - zero) % every === 0) element("text", { x: (n + 0.5) * wide, y: 49 }, svg).textContent = name(n);
    });
  };

  return { matrix, bars, colour, signed, element };
})();
