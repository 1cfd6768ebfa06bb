// The page docs/explorer.md: what the reader picks, and the pictures of it.

"use strict";

(() => {
  const room = document.getElementById("relattn-explorer");
  if (!room) return;
  const { encodings, tokens, length: longest } = relattnNumbers;

  const labelled = (text, control, said) => {
    const label = document.createElement("label");
    label.append(text, control);
    if (said) label.append(said);
    return label;
  };

  const select = (id, options) => {
    const made = document.createElement("select");
    made.id = id;
    for (const [value, text] of options) made.add(new Option(text, value));
    return made;
  };

  const slider = (id, most, value, least = 0) => {
    const made = document.createElement("input");
    Object.assign(made, { id, type: "range", min: least, max: most, step: 1, value });
    return made;
  };

  const picture = (id, heading) => {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const svg = relattnDraw.element("svg", { id, role: "img", "aria-label": heading });
    figure.append(caption, svg);
    caption.textContent = heading;
    return { figure, caption, svg };
  };

  const encoding = select("relattn-encoding", Object.keys(encodings).map((name) => [name, name]));
  const kind = select("relattn-tokens", [["alike", "all alike"], ["drawn", "drawn at random"]]);
  const length = slider("relattn-length", longest, 12, 2);
  const query = slider("relattn-query", 11, 8);
  const causal = Object.assign(document.createElement("input"), { id: "relattn-causal", type: "checkbox" });
  const parameters = document.createElement("div");
  const says = document.createElement("p");
  const saidOf = { length: document.createElement("output"), query: document.createElement("output") };
  const matrix = picture("relattn-matrix", "added to S");
  const row = picture("relattn-row", "row of offsets");
  const weights = picture("relattn-weights", "weights");

  const controls = document.createElement("div");
  controls.className = "relattn-controls";
  parameters.className = "relattn-parameters";
  controls.append(
    labelled("encoding ", encoding), labelled("tokens ", kind), parameters,
    labelled("length ", length, saidOf.length), labelled("query ", query, saidOf.query),
    labelled("causal ", causal)
  );
  const pictures = document.createElement("div");
  pictures.className = "relattn-pictures";
  pictures.append(matrix.figure, row.figure, weights.figure);
  says.setAttribute("aria-live", "polite");
  room.replaceChildren(controls, says, pictures);

  const given = () => Object.entries(encodings[encoding.value].parameters);

  const offer = () => {
    parameters.replaceChildren(
      ...given().map(([name, values]) => {
        const said = document.createElement("output");
        return labelled(`${name} `, slider(`relattn-parameter-${name}`, values.length - 1, 0), said);
      })
    );
  };

  const show = () => {
    query.max = length.value - 1;
    const places = given().map(([name, values]) => {
      const control = document.getElementById(`relattn-parameter-${name}`);
      control.nextSibling.textContent = values[control.value];
      return control.value;
    });
    const taken = tokens[kind.value];
    const symbols = encodings[encoding.value].entries[kind.value][places.join(",")];
    const i = Number(query.value);
    const size = Number(length.value);
    saidOf.length.textContent = size;
    saidOf.query.textContent = i;
    says.textContent = `${encoding.value}: ${encodings[encoding.value].says}.`;

    const added = relattnEquation.added(taken, symbols, size);
    const shares = relattnEquation.softmax(relattnEquation.scores(taken, symbols, size, causal.checked)[i]);
    const reach = relattnDraw.matrix(matrix.svg, added, i, (a, b, number) => `query ${a}, key ${b}: ${number}`);
    matrix.caption.textContent = `added to S, from −${relattnDraw.signed(reach)} (blue) to ${relattnDraw.signed(reach)}`;
    const offset = (n) => relattnDraw.signed(n - size + 1);
    const mean = relattnEquation.diagonals(added);
    relattnDraw.bars(row.svg, mean, size - 1, offset, (n, number) => `d = ${offset(n)}: ${number}`);
    row.caption.textContent = "the row of offsets: the mean along each diagonal, by d";
    relattnDraw.bars(weights.svg, shares, 0, String, (j, number) => `key ${j}: ${number}`);
    weights.caption.textContent = `the weights of query ${i}, by key`;
  };

  encoding.addEventListener("change", offer);
  room.addEventListener("input", show);
  room.addEventListener("change", show);
  offer();
  show();
})();
