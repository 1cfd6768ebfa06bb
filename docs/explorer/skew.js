// The page docs/skew_animation.md: columns of P = Q @ RK^T become diagonals of S_rel, one offset after the other.

"use strict";

const relattnSkew = (() => {
  const LENGTH = 4;
  const ROWS = 2 * LENGTH - 1;

  // The cells of offset d that have a key: query i, row m of the table, key j.
  const cells = (d) =>
    Array.from({ length: LENGTH }, (_, i) => ({ i, m: d + LENGTH - 1, j: i + d })).filter(
      ({ j }) => j >= 0 && j < LENGTH
    );

  // Where each published way finds the same cells.
  const ways = {
    gather: (d) => `copies RK[${d}] for ${cells(d).map(({ i, j }) => `q${i}, k${j}`).join("; ")}`,
    pad_reshape: (d) =>
      d > 0
        ? "has no row for the future: what stands there has wrapped around, and the causal mask hides it"
        : `element ${cells(d).map(({ i, m }) => i * (LENGTH + 1) + m + 1).join(", ")} of the padded memory`,
    diagonals: (d) => `diagonal ${cells(d).map(({ j }) => j).join(", ")} of P with its queries reversed`,
    strided: (d) =>
      `element ${cells(d).map(({ i, j }) => LENGTH - 1 + i * (ROWS - 1) + j).join(", ")} of the memory of P`,
  };

  return { LENGTH, ROWS, cells, ways };
})();

(() => {
  const room = document.getElementById("relattn-skew");
  if (!room) return;
  const { LENGTH, ROWS, cells, ways } = relattnSkew;
  const { element, colour, signed } = relattnDraw;
  const TO_S = ROWS + 1.5;
  const PAUSE = 1500;
  const last = ROWS - 1;

  const button = (text, act) => {
    const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    made.addEventListener("click", act);
    return made;
  };
  const svg = element("svg", { viewBox: `-0.7 -1 ${TO_S + LENGTH + 0.9} ${LENGTH + 1.8}`, role: "img" });
  svg.setAttribute("aria-label", "Columns of P move to the diagonals of the scores");
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: last, id: "relattn-step" });
  const says = document.createElement("p");
  const list = document.createElement("dl");
  const saidOf = {};
  for (const way of Object.keys(ways)) {
    const name = document.createElement("dt");
    name.textContent = way;
    list.append(name, (saidOf[way] = Object.assign(document.createElement("dd"), { id: `relattn-way-${way}` })));
  }

  const write = (x, y, text) => (element("text", { x, y, class: "relattn-small" }, svg).textContent = text);
  const cell = (i, m, style) => {
    const d = m - LENGTH + 1;
    const group = element("g", { class: style }, svg);
    group.style.transform = `translate(${m}px, ${i}px)`;
    const fill = d ? colour(d, 1.4 * LENGTH) : "#f6c945";
    element("rect", { width: 0.94, height: 0.94, rx: 0.1, fill }, group);
    element("text", { x: 0.47, y: 0.46, class: "relattn-offset" }, group).textContent = signed(d);
    element("text", { x: 0.47, y: 0.8, class: "relattn-small" }, group).textContent = `q${i}`;
    return group;
  };

  write(ROWS / 2, -0.35, "P = Q @ RKᵀ, by offset");
  write(TO_S + LENGTH / 2, -0.35, "S_rel, by key");
  for (let n = 0; n < LENGTH; n++) write(-0.35, n + 0.6, `q${n}`);
  for (let n = 0; n < LENGTH; n++) write(TO_S + n + 0.5, LENGTH + 0.45, `k${n}`);
  element("rect", { x: TO_S - 0.03, y: -0.03, width: LENGTH, height: LENGTH, class: "relattn-marked" }, svg);
  const still = Array.from({ length: ROWS }, (_, m) => Array.from({ length: LENGTH }, (_, i) => cell(i, m, "")));
  const moving = Array.from({ length: ROWS }, (_, m) =>
    cells(m - LENGTH + 1).map((one) => ({ ...one, group: cell(one.i, m, "relattn-moving") }))
  );

  let timer = null;
  const show = (step) => {
    slider.value = step;
    const d = step - LENGTH + 1;
    still.forEach((column, m) => column.forEach((group) => (group.style.opacity = m === step ? 1 : 0.35)));
    moving.forEach((column, m) =>
      column.forEach(({ group, i, j }) => {
        group.style.opacity = m <= step ? 1 : 0;
        group.style.transform = m <= step ? `translate(${TO_S + j}px, ${i}px)` : `translate(${m}px, ${i}px)`;
        group.dataset.place = m <= step ? `${i},${j}` : "";
        group.dataset.offset = m - LENGTH + 1;
      })
    );
    says.textContent = `Offset ${signed(d)}: column ${step} of P goes to the diagonal j − i = ${signed(d)}.`;
    for (const [way, said] of Object.entries(ways)) saidOf[way].textContent = said(d).replace("-", "−");
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const go = (step) => {
    stop();
    show(Math.max(0, Math.min(last, step)));
  };
  const play = button("Play", () => {
    if (timer) return stop();
    show(Number(slider.value) === last ? 0 : Number(slider.value) + 1);
    play.textContent = "Pause";
    timer = setInterval(() => (Number(slider.value) === last ? stop() : show(Number(slider.value) + 1)), PAUSE);
  });
  play.id = "relattn-play";
  slider.addEventListener("input", () => go(Number(slider.value)));

  const controls = document.createElement("div");
  controls.className = "relattn-controls";
  const label = document.createElement("label");
  label.append("offset ", slider);
  controls.append(play, button("Back", () => go(slider.value - 1)), button("Step", () => go(Number(slider.value) + 1)), label);
  room.replaceChildren(controls, says, svg, list);
  show(0);
})();
