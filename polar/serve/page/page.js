"use strict";

const find = (selector, inside = document) => inside.querySelector(selector);
const form = find("#write");
const progress = find("#progress");
let payloadBits = 32;

/** Ask the server; a refusal becomes an Error with its line. */
async function ask(path, body) {
  let answer;
  try {
    answer = await fetch(path, body && {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
    });
  } catch {
    throw new Error("the server does not answer");
  }
  const values = await answer.json().catch(() => ({error: `the server answered ${answer.status}`}));
  if (!answer.ok) throw new Error(values.error);
  return values;
}

/** A number as people write it: 0.012, 3.4 · 10⁻²⁴. */
function spelled(value) {
  if (value === 0 || value >= 0.001) return String(Number(value.toPrecision(3)));
  const [digits, power] = value.toExponential(1).split("e");
  return `${digits} · 10${[...power].map((digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]).join("")}`;
}

/** An element with text, or with other elements in it. */
function element(name, content, className = "") {
  const made = document.createElement(name);
  made.className = className;
  made.append(...[content].flat());
  return made;
}

/** One of the two texts. */
class Text {
  constructor(section) {
    this.input = find("textarea", section);
    this.button = find(".read", section);
    this.verdict = find(".verdict", section);
    this.shown = find(".shown", section);
    this.asked = 0;
    this.button.addEventListener("click", () => this.read());
    this.input.addEventListener("input", () => this.clear());
  }

  clear() {
    this.asked += 1;
    this.verdict.replaceChildren();
    this.shown.hidden = true;
  }

  async read() {
    this.clear();
    const mine = this.asked;
    this.button.disabled = true;
    this.verdict.textContent = "reading …";
    try {
      const found = await ask("/decode", {text: this.input.value});
      if (mine === this.asked) this.show(found);
    } catch (error) {
      if (mine === this.asked) this.verdict.replaceChildren(element("p", error.message, "error"));
    } finally {
      this.button.disabled = false;
    }
  }

  show(found) {
    const marked = found.is_marked;
    const heading = found.message_bits !== null ? "A message" : marked ? "Marked, but no message is left" : "No mark of this key";
    const facts = [["p-value", spelled(found.p_value)]];
    if (found.message_bits !== null) facts.unshift(["message", found.message ?? found.message_bits]);
    if (marked) {
      const length = found.parts.reduce((sum, [start, end]) => sum + end - start, 0);
      facts.push(["marked", `${Math.round(100 * length / Math.max(1, found.text.length))} % of the text`]);
    }
    const list = element("dl", facts.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
    this.verdict.replaceChildren(element("strong", heading, marked ? "yes" : ""), list);
    this.shade(found);
  }

  /** The text as it was read; tokens that are likely the sender's have a background. */
  shade(found) {
    // Places count characters; a JavaScript string counts halves of the rarer ones.
    const letters = Array.from(found.text);
    const pieces = [];
    let last = 0;
    for (const {start, end, marked} of found.tokens) {
      if (start < last) continue;
      pieces.push(letters.slice(last, start).join(""));
      const piece = element("span", letters.slice(start, end).join(""));
      piece.style.setProperty("--share", found.is_marked ? marked : 0);
      piece.title = found.is_marked ? `${Math.round(100 * marked)} %` : "";
      pieces.push(piece);
      last = end;
    }
    pieces.push(letters.slice(last).join(""));
    this.shown.replaceChildren(...pieces);
    this.shown.hidden = !letters.length;
  }
}

const left = new Text(find("#left"));
const right = new Text(find("#right"));

/** Ask for a text, and show how far it is until it comes. */
async function write(path, body, what) {
  const bar = find("progress", progress);
  const line = find("span", progress);
  progress.hidden = false;
  bar.removeAttribute("value");
  line.textContent = `${what} …`;
  const timer = setInterval(async () => {
    const {done, total} = await ask("/status").catch(() => ({total: 0}));
    if (!total) return;
    bar.value = done / total;
    line.textContent = `${what}: ${done} of at most ${total} tokens`;
  }, 700);
  try {
    return await ask(path, body);
  } finally {
    clearInterval(timer);
    progress.hidden = true;
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = find("button", form);
  const refusal = find("#refusal");
  const wanted = {
    prompt: find("#prompt").value,
    tokens: Number(find("#tokens").value),
    temperature: Number(find("#temperature").value),
  };
  const message = find("#message").value;
  button.disabled = true;
  refusal.hidden = true;
  try {
    const marked = await write("/embed", {...wanted, [payloadBits % 8 ? "message_bits" : "message"]: message}, "Writing the text with the message");
    left.input.value = marked.text;
    left.read();
    const plain = await write("/plain", wanted, "Writing the plain text");
    right.input.value = plain.text;
    right.read();
  } catch (error) {
    refusal.textContent = error.message;
    refusal.hidden = false;
  } finally {
    button.disabled = false;
  }
});

ask("/status").then((status) => {
  payloadBits = status.payload_bits;
  const bytes = payloadBits % 8 === 0;
  find("#model").textContent = status.model;
  find("#message-label").textContent = bytes ? `Message, ${payloadBits / 8} plain letters` : `Message, ${payloadBits} zeros and ones`;
  find("#message").value = bytes ? "47110815".repeat(4).slice(0, payloadBits / 8) : "01".repeat(payloadBits).slice(0, payloadBits);
  find("#tokens").max = status.most_tokens;
}).catch((error) => {
  find("#refusal").textContent = error.message;
  find("#refusal").hidden = false;
});
