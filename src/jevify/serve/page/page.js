// The page of `jevify serve`. Whatever comes from a person or the server goes into the document as text, never as markup.
import { callAsCurl, callAsPython } from "./call.js";

const EXAMPLE = {
  context:
    "I was charged twice for the camera and it still has not shipped, five days after I paid for express delivery. " +
    "I called two times and was told it is about to ship. I have cancelled the order: please refund both charges.",
  questions: {
    department: {
      type: "choice",
      instructions: "Which department should handle this message?",
      criteria: {
        billing: "Charges, invoices, refunds and payment methods",
        shipping: "Delivery, tracking, lost or damaged parcels",
        technical: "The product does not work or is hard to use",
        account: "Sign-in, passwords and personal data",
      },
    },
    refund_requested: { type: "noul", instructions: "Does the customer ask for money back?" },
    severity: {
      type: "score",
      instructions: "How serious is the problem for the customer?",
      criteria: ["Minor: a question or a small annoyance", "Moderate: the customer wants it fixed", "Severe: money or access is lost"],
    },
  },
};
const STAGES = ["wait", "queue", "prepare", "pack", "forward", "prefill", "branches", "scoring"];
const RUBRIC = "jevify-rubric", KEY = "jevify-key";
const at = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// The rubric while it is edited: a list, since ids may be empty or double for a moment.
let rubric = [];
let lastCall = null;

function fromQuestions(questions) {
  return Object.entries(questions).map(([id, question]) => {
    const criteria = question.criteria ?? null;
    const text = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));
    const options = { choice: [["", ""]], noul: [["true", ""], ["false", ""]], score: [["", ""]] };
    if (question.type === "choice" && criteria)
      options.choice = Array.isArray(criteria) ? criteria.map((label) => [label, ""]) : Object.entries(criteria).map(([label, told]) => [label, text(told)]);
    if (question.type === "noul" && criteria) options.noul = [["true", text(criteria.true)], ["false", text(criteria.false)]];
    if (question.type === "score" && criteria) options.score = criteria.map((told) => ["", text(told)]);
    return { id, type: question.type, instructions: text(question.instructions), options };
  });
}

function toQuestions(list) {
  const questions = {};
  for (const one of list) {
    const question = { type: one.type };
    if (one.instructions) question.instructions = one.instructions;
    const options = one.options[one.type];
    if (one.type === "choice") question.criteria = Object.fromEntries(options.map(([label, told]) => [label, told || null]));
    if (one.type === "score") question.criteria = options.map(([, told]) => told);
    if (one.type === "noul") {
      const told = Object.fromEntries(options.filter(([, text]) => text));
      if (Object.keys(told).length) question.criteria = told;
    }
    questions[one.id] = question;
  }
  return questions;
}

/** What is wrong with the rubric, as [index, text] pairs. */
function faults(list) {
  const found = [], seen = new Set();
  if (!list.length) found.push([-1, "Add a question first."]);
  list.forEach((one, index) => {
    if (!one.id.trim()) found.push([index, "Give the question an id."]);
    else if (seen.has(one.id)) found.push([index, `The id ${one.id} is used twice.`]);
    seen.add(one.id);
    const labels = one.options[one.type].map(([label, told]) => (one.type === "score" ? told : label));
    if (one.type !== "noul" && labels.some((label) => !label.trim())) found.push([index, "Fill in every option, or remove it."]);
    if (one.type === "choice" && new Set(labels).size < labels.length) found.push([index, "Two options have the same label."]);
  });
  return found;
}

function keep() {
  sessionStorage.setItem(RUBRIC, JSON.stringify(rubric));
}

function drawForm() {
  at("form").replaceChildren(...rubric.map(questionCard));
  keep();
}

function questionCard(one, index) {
  const change = (field) => (event) => { one[field] = event.target.value; keep(); };
  const move = (by) => () => {
    rubric.splice(index + by, 0, ...rubric.splice(index, 1));
    drawForm();
    at("form").children[index + by].querySelector("input").focus();
  };
  const kind = make("select", { "aria-label": "Type", onchange: (event) => { one.type = event.target.value; drawForm(); at("form").children[index].querySelector("select").focus(); } },
    ...[["choice", "choice: one of several"], ["noul", "noul: yes or no"], ["score", "score: a level"]].map(([value, text]) => make("option", { value }, text)));
  kind.value = one.type;
  const card = make("div", { class: "question", "data-index": index },
    make("div", { class: "row" },
      make("input", { class: "name", "aria-label": "Id", placeholder: "id", value: one.id, oninput: change("id") }), kind,
      make("button", { type: "button", class: "small", "aria-label": "Move up", disabled: index === 0, onclick: move(-1) }, "↑"),
      make("button", { type: "button", class: "small", "aria-label": "Move down", disabled: index === rubric.length - 1, onclick: move(1) }, "↓"),
      make("button", { type: "button", class: "small", "aria-label": `Remove ${one.id || "question"}`, onclick: () => { rubric.splice(index, 1); drawForm(); at("add").focus(); } }, "Remove")),
    make("div", { class: "row" }, make("input", { "aria-label": "Instructions", placeholder: "What is asked?", value: one.instructions, oninput: change("instructions") })));
  const options = one.options[one.type];
  options.forEach((option, place) => {
    const set = (part) => (event) => { option[part] = event.target.value; keep(); };
    const row = make("div", { class: "row option" });
    if (one.type === "score") row.append(make("span", { class: "level" }, String(place)));
    else if (one.type === "noul") row.append(make("span", { class: "level" }, option[0] === "true" ? "yes" : "no"));
    else row.append(make("input", { class: "label", "aria-label": `Label ${place + 1}`, placeholder: "label", value: option[0], oninput: set(0) }));
    row.append(make("input", { "aria-label": `Description ${place + 1}`, placeholder: one.type === "score" ? "what this level means" : "what it means (optional)", value: option[1], oninput: set(1) }));
    if (one.type !== "noul")
      row.append(make("button", { type: "button", class: "small", "aria-label": `Remove option ${place + 1}`, disabled: options.length === 1, onclick: () => { options.splice(place, 1); drawForm(); } }, "×"));
    card.append(row);
  });
  if (one.type !== "noul")
    card.append(make("div", {}, make("button", { type: "button", class: "small", onclick: () => { options.push(["", ""]); drawForm(); } }, one.type === "score" ? "Add a level" : "Add an option")));
  card.append(make("p", { class: "error", role: "alert" }));
  return card;
}

function showJson(on) {
  if (on) at("rubric").value = JSON.stringify({ questions: toQuestions(rubric) }, null, 2);
  else if (!readJson()) return;
  else drawForm();
  at("json").hidden = !on;
  at("form").hidden = at("add").hidden = on;
  at("as-json").setAttribute("aria-pressed", on);
  at("as-form").setAttribute("aria-pressed", !on);
}

/** Take over the JSON; on an error say so, and leave what was typed. */
function readJson() {
  at("rubric-error").textContent = "";
  try {
    const read = JSON.parse(at("rubric").value);
    const questions = read && typeof read === "object" && "questions" in read ? read.questions : read;
    if (!questions || typeof questions !== "object" || Array.isArray(questions)) throw new Error('give {"questions": {id: question}}');
    for (const [id, question] of Object.entries(questions)) {
      if (!["choice", "noul", "score"].includes(question?.type)) throw new Error(`questions.${id}.type must be choice, noul or score`);
      if (question.type === "score" && question.criteria && !Array.isArray(question.criteria)) throw new Error(`questions.${id}.criteria must be a list of levels`);
    }
    rubric = fromQuestions(questions);
    keep();
    return true;
  } catch (error) {
    at("rubric-error").textContent = error.message;
    at("rubric").classList.add("wrong");
    return false;
  } finally {
    if (!at("rubric-error").textContent) at("rubric").classList.remove("wrong");
  }
}

async function decide() {
  if (at("run").disabled) return;
  if (!at("json").hidden && !readJson()) return;
  for (const card of at("form").children) card.querySelector(".error").textContent = "";
  const wrong = faults(rubric);
  if (!at("context").value.trim()) return problem("Give a text first.", [], at("context"));
  if (wrong.length) {
    for (const [index, text] of wrong) if (index >= 0 && at("json").hidden) at("form").children[index].querySelector(".error").textContent += text + " ";
    return problem("The questions are not ready.", wrong.map(([index, text]) => (index < 0 ? text : `${rubric[index].id || "question " + (index + 1)}: ${text}`)));
  }
  const body = { state: at("context").value, model: "jev-latest", questions: toQuestions(rubric) };
  at("problem").hidden = true;
  at("run").disabled = true;
  at("status").textContent = "Deciding…";
  const begin = performance.now();
  try {
    const reply = await fetch("/v1/systemone?debug=1", { method: "POST", headers: headers(), body: JSON.stringify(body) });
    const text = await reply.text();
    const elapsed = performance.now() - begin;
    let read = null;
    try { read = JSON.parse(text); } catch { /* told below */ }
    if (reply.ok && read) showDecision(read, body, elapsed);
    else refused(reply, read);
  } catch (error) {
    problem("The server cannot be reached.", [error.message]);
  } finally {
    at("run").disabled = false;
  }
}

function headers() {
  const key = at("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function refused(reply, read) {
  const details = Array.isArray(read?.detail)
    ? read.detail.map(({ loc, msg }) => `${(loc ?? []).filter((part) => part !== "body").join(".")}: ${msg}`)
    : [read?.detail ?? read?.error ?? reply.statusText].map((part) => (typeof part === "string" ? part : JSON.stringify(part)));
  if (reply.status === 401 || reply.status === 403) {
    at("key-row").hidden = false;
    at("key").focus();
    return problem("The server wants an API key.", details);
  }
  if (reply.status === 429 || reply.status === 503 || reply.status === 529) {
    const wait = Number(reply.headers.get("retry-after-ms") ?? 1000 * Number(reply.headers.get("retry-after") ?? 1));
    problem(`The server is busy. Try again in ${(wait / 1000).toFixed(1)} s.`, details);
    const again = make("button", { type: "button", disabled: true, onclick: decide }, "Try again");
    setTimeout(() => { again.disabled = false; }, wait);
    return at("problem").append(again);
  }
  problem(`The request was refused (${reply.status}).`, details);
}

function problem(title, details, focus = null) {
  at("status").textContent = "";
  at("problem").hidden = false;
  at("problem").replaceChildren(make("strong", {}, title), make("ul", {}, ...details.map((text) => make("li", {}, text))));
  focus?.focus();
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function showDecision(read, body, elapsed) {
  lastCall = body;
  at("call").hidden = true;
  const questions = read.debug?.metadata?.questions ?? {};
  at("answers").replaceChildren(...Object.entries(read.answers).map(([id, answer]) => answerCard(id, answer, body.questions[id], questions[id])));
  const tokens = read.usage?.input_tokens;
  at("status").textContent = `${read.model}: ${Object.keys(read.answers).length} answers in ${elapsed.toFixed(0)} ms${tokens ? `, ${tokens} tokens` : ""}`;
  at("how").hidden = false;
  showStages(read.debug?.metadata?.stages_ms ?? {}, elapsed);
  showTree(read.debug?.tree);
}

function answerCard(id, answer, question, told) {
  const bars = Object.entries(answer.probabilities ?? (question.type === "noul" ? { no: 1 - answer.noul, yes: answer.noul } : {}));
  const best = bars.reduce((top, bar) => (bar[1] > top[1] ? bar : top), bars[0] ?? ["", 0])[0];
  const name = (label) => (question.type === "score" && answer.legend ? `${label}: ${plain(answer.legend[label])}` : label);
  const verdict = question.type === "score" ? `${answer.score.toFixed(2)} of 0 to ${bars.length - 1}` : question.type === "noul" ? (answer.noul > 0.5 ? "yes" : "no") : answer.choice;
  const card = make("article", { class: "answer", "data-id": id },
    make("div", { class: "head" }, make("h3", {}, id), make("span", { class: "verdict" }, verdict),
      ...(answer.confidence === undefined ? [] : [make("span", { class: "note" }, `confidence ${answer.confidence.toFixed(2)}`)])));
  if (question.type === "score" && bars.length > 1) {
    const scale = make("div", { class: "scale", role: "img", "aria-label": `mean level ${answer.score.toFixed(2)}` });
    bars.forEach((_, level) => { const tick = make("b"); tick.style.left = percent(level / (bars.length - 1)).replace(" ", ""); scale.append(tick); });
    const dot = make("i");
    dot.style.left = percent(answer.score / (bars.length - 1)).replace(" ", "");
    scale.append(dot);
    card.append(scale);
  }
  for (const [label, share] of bars) {
    const fill = make("i");
    fill.style.width = `${100 * share}%`;
    card.append(make("div", { class: label === best ? "option-bar best" : "option-bar" },
      make("span", { class: "name" }, name(label)), make("span", { class: "track", "aria-hidden": "true" }, fill), make("span", { class: "value" }, percent(share))));
  }
  if (told?.settled) card.append(make("p", { class: "note tie" }, "≈ settled: too close to call at this precision, so it was scored again alone and in fp32."));
  else if (told?.near_tie === true) card.append(make("p", { class: "note tie" }, "≈ near tie: precision or what shared the batch could overturn it."));
  return card;
}

const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function showStages(stages, elapsed) {
  const known = STAGES.filter((name) => stages[name] >= 0.005).map((name) => [name, stages[name]]);
  const server = known.reduce((sum, [, value]) => sum + value, 0);
  const parts = [...known, ["network and the rest", Math.max(0, elapsed - server)]];
  const stack = make("div", { class: "stack", role: "img", "aria-label": parts.map(([name, value]) => `${name} ${value.toFixed(1)} ms`).join(", ") });
  const legend = make("ul", { class: "legend" });
  parts.forEach(([name, value], index) => {
    const color = `var(--stage-${name.startsWith("network") ? 5 : index % 5})`;
    const bar = make("i");
    bar.style.cssText = `flex: ${value} 0 0; background: ${color}`;
    stack.append(bar);
    const dot = make("i");
    dot.style.background = color;
    legend.append(make("li", {}, dot, `${name} ${value.toFixed(1)} ms`));
  });
  if (stages.device !== undefined) legend.append(make("li", {}, `of which the GPU ${stages.device.toFixed(1)} ms`));
  at("stages").replaceChildren(stack, legend);
}

/** Segments as rectangles below their parents, widths by the square root of tokens, so that short ones can be seen. */
function showTree(tree) {
  at("tree-part").hidden = !tree?.length;
  if (!tree?.length) return at("tree").replaceChildren();
  const children = tree.map(() => []), roots = [];
  tree.forEach((segment, index) => (segment.parent === null || segment.parent === undefined ? roots : children[segment.parent]).push(index));
  const own = (index) => Math.sqrt(tree[index].tokens);
  const width = (index) => Math.max(own(index), children[index].reduce((sum, child) => sum + width(child), 0));
  const total = roots.reduce((sum, root) => sum + width(root), 0);
  const NS = "http://www.w3.org/2000/svg", WIDE = 640, HIGH = 26, GAP = 2;
  let depth = 0;
  const svg = document.createElementNS(NS, "svg");
  const draw = (index, left, level) => {
    depth = Math.max(depth, level);
    const size = (width(index) / total) * WIDE, group = document.createElementNS(NS, "g");
    const label = `${tree[index].label ?? ""} ${tree[index].tokens} tokens`.trim();
    group.setAttribute("tabindex", "0");
    const title = document.createElementNS(NS, "title");
    title.textContent = label;
    const box = document.createElementNS(NS, "rect");
    for (const [name, value] of Object.entries({ x: left + GAP / 2, y: level * (HIGH + 8) + 1, width: Math.max(1, size - GAP), height: HIGH, rx: 3 })) box.setAttribute(name, value);
    if (level === 0) box.classList.add("root");
    group.append(title, box);
    const room = Math.floor((size - 10) / 6.2);
    if (room >= 3) {
      const text = document.createElementNS(NS, "text");
      text.setAttribute("x", left + 6);
      text.setAttribute("y", level * (HIGH + 8) + 18);
      if (level === 0) text.classList.add("on-root");
      text.textContent = label.length > room ? label.slice(0, room - 1) + "…" : label;
      group.append(text);
    }
    svg.append(group);
    for (const child of children[index]) { draw(child, left, level + 1); left += (width(child) / total) * WIDE; }
  };
  let left = 0;
  for (const root of roots) { draw(root, left, 0); left += (width(root) / total) * WIDE; }
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${(depth + 1) * (HIGH + 8)}`);
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", `${tree.length} segments, ${tree.reduce((sum, segment) => sum + segment.tokens, 0)} tokens`);
  at("tree").replaceChildren(svg);
}

async function copy(text, button) {
  at("call").textContent = text;
  at("call").hidden = false;
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  } catch {
    getSelection().selectAllChildren(at("call"));
  }
}

async function offerStored() {
  try {
    const reply = await fetch("/v1/workflows", { headers: headers() });
    const names = reply.ok ? (await reply.json()).workflows ?? [] : [];
    if (!names.length) return;
    at("stored").replaceChildren(make("option", { value: "" }, "choose…"), ...names.map((name) => make("option", { value: name }, name)));
    at("stored-row").hidden = false;
  } catch { /* told when something is asked */ }
}

async function takeStored() {
  const name = at("stored").value;
  if (!name) return;
  const reply = await fetch(`/v1/workflows/${encodeURIComponent(name)}`, { headers: headers() });
  if (reply.ok) take((await reply.json()).questions);
  else problem(`The workflow ${name} cannot be had (${reply.status}).`, []);
}

function take(questions) {
  rubric = fromQuestions(questions);
  drawForm();
  if (!at("json").hidden) at("rubric").value = JSON.stringify({ questions: toQuestions(rubric) }, null, 2);
}

at("run").addEventListener("click", decide);
at("stored").addEventListener("change", takeStored);
at("add").addEventListener("click", () => {
  rubric.push({ id: "", type: "choice", instructions: "", options: { choice: [["", ""], ["", ""]], noul: [["true", ""], ["false", ""]], score: [["", ""], ["", ""]] } });
  drawForm();
  at("form").lastElementChild.querySelector("input").focus();
});
at("as-form").addEventListener("click", () => showJson(false));
at("as-json").addEventListener("click", () => { if (at("json").hidden) showJson(true); });
at("rubric").addEventListener("input", readJson);
at("example").addEventListener("click", () => { at("context").value = EXAMPLE.context; take(EXAMPLE.questions); });
at("copy-curl").addEventListener("click", (event) => copy(callAsCurl(location.origin, lastCall, Boolean(at("key").value)), event.target));
at("copy-python").addEventListener("click", (event) => copy(callAsPython(location.origin, lastCall, Boolean(at("key").value)), event.target));
at("key").addEventListener("change", () => { sessionStorage.setItem(KEY, at("key").value); offerStored(); });
at("key-row").addEventListener("submit", (event) => { event.preventDefault(); at("key").dispatchEvent(new Event("change")); });
document.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); decide(); } });
for (const kind of ["dragover", "dragleave", "drop"])
  at("context").addEventListener(kind, async (event) => {
    event.preventDefault();
    at("context").classList.toggle("dropping", kind === "dragover");
    const file = kind === "drop" ? event.dataTransfer.files[0] : null;
    if (file) at("context").value = await file.text();
    else if (kind === "drop") at("context").value += event.dataTransfer.getData("text");
  });

at("key").value = sessionStorage.getItem(KEY) ?? "";
at("key-row").hidden = !at("key").value;
try { rubric = JSON.parse(sessionStorage.getItem(RUBRIC)) ?? fromQuestions(EXAMPLE.questions); } catch { rubric = fromQuestions(EXAMPLE.questions); }
drawForm();
offerStored();
